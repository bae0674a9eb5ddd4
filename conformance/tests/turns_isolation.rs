//! The Harness's own sandbox, where the machine has what it needs; where it has not, the bridge says so before anything
//! is started.

use conformance::rig::{Isolation, Observed, Setup, function, refused, scenario, text_result};
use proto::v1;
use proto::v1::Reason;
use proto::v1::event::Kind;

#[test]
fn the_native_sandbox_holds_or_is_said_not_to_work() {
    let setup = Setup { isolation: Isolation::Native, ..Setup::default() };
    scenario("isolation_native", &["R-PLC-1", "R-CAP-1", "R-PRE-1"], setup, async |rig| {
        let info = rig.client().await?.get_runtime_info(v1::GetRuntimeInfoRequest {}).await?;
        let [codex] = &info.harnesses[..] else { anyhow::bail!("{:?}", info.harnesses) };
        assert_eq!((codex.kind.as_str(), codex.isolation.as_str()), ("codex", "native"));
        let session = rig.session().await?;
        let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
        if !codex.available {
            // This is what there is to show on a machine without user namespaces.
            eprintln!("the native scenario did not run: {}", codex.unavailable_reason);
            assert!(codex.unavailable_reason.contains("sandbox"), "{}", codex.unavailable_reason);
            let prepared = rig.prepare(&session, configuration).await;
            let prepared =
                prepared.map_err(|error| error.downcast::<proto::client::Error>().expect("an error of the client"));
            let refusal = refused(prepared, Reason::HarnessUnavailable)?;
            assert!(refusal.message.contains("isolation"), "what to do is not said: {}", refusal.message);
            assert_eq!(rig.provider.requests().len(), 0);
            return Ok(());
        }
        let outside = rig.place().root().join("outside.txt");
        let command = format!(
            "echo inside >inside.txt; echo outside >{}; (exec 3<>/dev/tcp/127.0.0.1/{}) && echo connected; echo over",
            outside.display(),
            rig.provider.address().port()
        );
        let steps = serde_json::json!([
            {"play": [{"shell": {"command": command}}, {"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{}"}]}]},
            {"play": [{"text": {"chunks": ["Done."]}}]}]);
        rig.provider.script(&steps.to_string())?;
        let mut events = rig.start_turn(&session, configuration, "t-1", "try it").await?;
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        session.submit(vec![text_result("t-1", "c1", "found")]).await?;
        let seen = seen.to_the_end(&mut events).await?;
        seen.completed()?;
        let output = seen.kinds().find_map(|kind| match kind {
            Kind::ToolCompleted(v1::ToolCompleted { output: Some(v1::Content { place }), .. }) => place.clone(),
            _ => None,
        });
        let Some(v1::content::Place::Text(output)) = output else { anyhow::bail!("no output: {seen:?}") };
        assert_eq!(std::fs::read_to_string(rig.workspace().join("inside.txt"))?, "inside\n");
        assert!(!outside.exists(), "the sandbox lets writes out: {output}");
        assert!(!output.contains("connected"), "the sandbox lets connections out: {output}");
        Ok(())
    });
}
