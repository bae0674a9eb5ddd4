//! Turns that stand still in a known place: with half a message, at a gate of the provider, or with an open call.

use proto::client::{Session, TurnEvents, text_input};
use proto::v1::{self, event::Kind};
use serde_json::{Value, json};

use super::{Observed, Rig, function};

impl Rig {
    /// A Turn that has said a part of its message and thinks on for good.
    ///
    /// # Errors
    /// What the bridge refused, or a Turn that ended.
    pub async fn half_way(
        &self,
        session: &Session,
        configuration: v1::ExecutionConfiguration,
        turn_id: &str,
    ) -> anyhow::Result<(TurnEvents, Observed)> {
        let half = json!({"text": {"chunks": ["half"], "open": true}});
        self.provider.script(&json!([{"play": [half, {"gate": "never"}]}]).to_string())?;
        let ready = self.prepare(session, configuration).await?;
        session.start(&ready, turn_id, text_input("think")).await?;
        let (mut events, mut seen) = (session.turn_events(turn_id), Observed::default());
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageDelta(_)).then_some(())).await?;
        Ok((events, seen))
    }

    /// A Turn `t-1` with the function `lookup` that has said its first message; what the model does then waits for the gate `go`.
    ///
    /// # Errors
    /// What the bridge refused, or a Turn that ended.
    pub async fn at_a_gate(
        &self,
        session: &Session,
        first: &str,
        then: &[Value],
    ) -> anyhow::Result<(TurnEvents, Observed)> {
        let mut play = vec![json!({"text": {"chunks": [first]}}), json!({"gate": "go"})];
        play.extend_from_slice(then);
        self.provider.script(&json!([{"play": play}]).to_string())?;
        let mut events = self.start_turn(session, self.looking_up(), "t-1", "go").await?;
        let mut seen = Observed::default();
        seen.until(&mut events, |kind| matches!(kind, Kind::MessageCompleted(_)).then_some(())).await?;
        Ok((events, seen))
    }

    /// A Turn `t-1` that waits for the result of its call `c1`. Requests of other Turns do not take its steps.
    ///
    /// # Errors
    /// What the bridge refused, or a Turn that ended.
    pub async fn waiting(&self, session: &Session) -> anyhow::Result<(TurnEvents, Observed)> {
        let answer = json!({"text": {"chunks": ["called"]}});
        let steps = [lookup("{}"), answer].map(|action| json!({"match": "call it", "play": [action]}));
        self.provider.script(&json!(steps).to_string())?;
        let mut events = self.start_turn(session, self.looking_up(), "t-1", "call it").await?;
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        Ok((events, seen))
    }

    fn looking_up(&self) -> v1::ExecutionConfiguration {
        self.configuration(vec![function("lookup", r#"{"type":"object"}"#)])
    }
}

/// The call `c1` of the function `lookup`, as an action of a script.
#[must_use]
pub fn lookup(arguments: &str) -> Value {
    json!({"calls": [{"name": "lookup", "call_id": "c1", "arguments": arguments}]})
}
