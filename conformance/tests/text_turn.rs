//! The smallest scenario: one text Turn of the real Harness.

use conformance::for_every_harness;
use conformance::rig::{Harness, MODEL_KEY, Setup, scenario};
use proto::v1::event::Kind;

for_every_harness!(a_text_turn_completes);

fn a_text_turn_completes(harness: Harness) {
    scenario("text_turn", &["R-EVT-1", "R-EVT-2", "R-EVT-3"], Setup::default().of(harness), async |rig| {
        let session = rig.session().await?;
        let observed = rig.whole_turn(&session, "t-1", "hello from the rig").await?;
        observed.completed()?;
        assert_eq!(observed.messages(), ["hello from the rig"]);
        assert_eq!(observed.deltas(), "hello from the rig");
        assert!(matches!(observed.kinds().next(), Some(Kind::TurnStarted(_))));
        let requests = rig.provider.model_requests();
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].key(), Some(MODEL_KEY));
        Ok(())
    });
}
