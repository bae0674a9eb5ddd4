//! The smallest scenario: one text Turn of the real Codex.

use conformance::rig::{MODEL_KEY, Setup, scenario};
use proto::v1::event::Kind;

#[test]
fn a_text_turn_of_the_real_codex_completes() {
    scenario("text_turn", &["R-EVT-1", "R-EVT-2", "R-EVT-3"], Setup::default(), async |rig| {
        let session = rig.session().await?;
        let observed = rig.whole_turn(&session, "t-1", "hello from the rig").await?;
        observed.completed()?;
        assert_eq!(observed.messages(), ["hello from the rig"]);
        assert_eq!(observed.deltas(), "hello from the rig");
        assert!(matches!(observed.kinds().next(), Some(Kind::TurnStarted(_))));
        let requests = rig.provider.model_requests();
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].header("authorization"), Some(&*format!("Bearer {MODEL_KEY}")));
        Ok(())
    });
}
