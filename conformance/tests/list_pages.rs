//! Lists of Turns and of Sessions: order, pages, what each entry says, and who may see what.

use anyhow::Context;
use conformance::rig::{Daemon, Link, Observed, Rig, Setup, function, refusal, refused, scenario, text_result};
use proto::client::Session;
use proto::v1::{self, ExecutorState, Reason, TurnPhase};

/// Why one Harness is enough.
const OWN: &str = "a list is read from the journal";

#[test]
fn turns_are_listed_newest_first_and_pages_stay_where_they_are() {
    scenario("list_turns", &["R-ASG-1", "R-API-2", "R-DUR-1"], Setup::outer().bridge(OWN), async |rig| {
        let session = rig.session().await?;
        assert_eq!(turns(rig, &session, None, "").await?, (vec![], String::new()));
        for number in 1..=5 {
            rig.whole_turn(&session, &format!("t-{number}"), "hello").await?.completed()?;
        }
        let (ids, next) = turns(rig, &session, Some(2), "").await?;
        assert_eq!(ids, ["t-5", "t-4"]);
        rig.whole_turn(&session, "t-6", "hello").await?;
        let (ids, next) = turns(rig, &session, Some(2), &next).await?;
        assert_eq!(ids, ["t-3", "t-2"], "a new Turn does not move the page");
        let (ids, end) = turns(rig, &session, Some(2), &next).await?;
        assert_eq!((ids, end.as_str()), (vec!["t-1".to_owned()], ""));
        let (ids, end) = turns(rig, &session, Some(6), "").await?;
        assert_eq!((ids.len(), ids[0].as_str(), end.as_str()), (6, "t-6", ""));

        // What is listed is what `GetTurn` tells, also after a restart.
        let listed = list_turns(rig, &session, None, "").await?.turns;
        assert_eq!(listed[1], session.turn("t-5").await?);
        rig.daemon.kill().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        assert_eq!(list_turns(rig, &session, None, "").await?.turns, listed);

        for size in [0, 501, u32::MAX] {
            refusal(request(rig, &session, Some(size), "").await, Reason::InvalidRequest).at("page_size");
        }
        for token in ["x", "t", "tx", "t+1", "s00"] {
            refusal(request(rig, &session, None, token).await, Reason::InvalidRequest).at("page_token").hides("t+1");
        }
        let lower = Session::bind(rig.client().await?, higher(&session), workspace(rig)).await?;
        refused(list_turns(rig, &session, None, "").await, Reason::AssignmentStale)?;
        assert_eq!(list_turns(rig, &lower, None, "").await?.turns, listed);
        Ok(())
    });
}

#[test]
fn a_turn_that_waits_is_listed_with_what_it_waits_for() {
    scenario("list_waiting_turn", &["R-FN-3"], Setup::outer().bridge(OWN), async |rig| {
        rig.provider.script(
            r#"[{"play": [{"text": {"chunks": ["first"]}}]},
                {"play": [{"calls": [{"name": "lookup", "call_id": "c1", "arguments": "{\"a\":1}"}]}]}]"#,
        )?;
        let session = rig.session().await?;
        let configuration = rig.configuration(vec![function("lookup", r#"{"type":"object"}"#)]);
        let mut events = rig.start_turn(&session, configuration.clone(), "t-1", "go").await?;
        Observed::default().to_the_end(&mut events).await?.completed()?;
        let mut events = rig.start_turn(&session, configuration, "t-2", "go on").await?;
        let mut seen = Observed::default();
        seen.call(&mut events).await?;
        let listed = list_turns(rig, &session, None, "").await?.turns;
        let phases: Vec<_> = listed.iter().map(|turn| (turn.turn_id.as_str(), turn.phase())).collect();
        assert_eq!(phases, [("t-2", TurnPhase::RequiresAction), ("t-1", TurnPhase::Ended)]);
        assert_eq!(listed[0].required_actions.len(), 1);
        assert_eq!(listed[0], session.turn("t-2").await?);
        session.submit(vec![text_result("t-2", "c1", "42")]).await?;
        seen.to_the_end(&mut events).await?.completed()
    });
}

#[test]
fn sessions_are_listed_as_they_stand() {
    scenario("list_sessions", &["R-ASG-5", "R-PRE-3", "R-ASG-4"], Setup::outer().bridge(OWN), async |rig| {
        rig.provider.script(
            r#"[{"match": "please-hold", "play": [{"text": {"chunks": ["so"], "open": true}}, {"gate": "go"}, "drop"]}]"#,
        )?;
        let unused = bind(rig, "s-1").await?;
        let idle = bind(rig, "s-2").await?;
        rig.whole_turn(&idle, "t-1", "hello").await?.completed()?;
        let native = idle.turn("t-1").await?.native.context("no native identity")?.session_id;
        let busy = bind(rig, "s-3").await?;
        rig.start_turn(&busy, rig.configuration(Vec::new()), "t-1", "please-hold").await?;
        let released = bind(rig, "s-4").await?;
        rig.whole_turn(&released, "t-1", "hello").await?.completed()?;
        released.release(false).await?;
        let _none = bind_at(rig, "s-5", v1::bind_assignment_request::Placement::None(v1::NoPlacement {})).await?;

        let all = sessions(rig, v1::ListSessionsRequest::default()).await?;
        let told: Vec<_> = all
            .iter()
            .map(|s| (s.session_id.as_str(), s.epoch, s.released, s.executor(), s.running_turn_id.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                ("s-1", 1, false, ExecutorState::None, ""),
                ("s-2", 1, false, ExecutorState::Idle, ""),
                ("s-3", 1, false, ExecutorState::Busy, "t-1"),
                ("s-4", 2, true, ExecutorState::None, ""),
                ("s-5", 1, false, ExecutorState::None, ""),
            ]
        );
        assert!(all.iter().all(|session| session.principal == rig.principal() && session.assignment_id == "a-1"));
        assert_eq!(all[0].placement, Some(placed(rig)));
        assert_eq!(all[4].placement, Some(v1::session_summary::Placement::None(v1::NoPlacement {})));
        assert_eq!((all[0].native_session_id.as_str(), all[0].last_activity), ("", None));
        assert_eq!(all[1].native_session_id, native);
        assert!(all[1].last_activity.is_some() && all[3].last_activity.is_some());

        // In pages, alone, and for an operator, which the daemon's own uid is.
        let pages = paged(rig, v1::ListSessionsRequest { page_size: Some(2), ..Default::default() }).await?;
        assert_eq!(pages, all);
        let one = v1::ListSessionsRequest { session_id: Some("s-3".into()), ..Default::default() };
        assert_eq!(sessions(rig, one.clone()).await?, all[2..3]);
        let everybody = v1::ListSessionsRequest { all_principals: true, page_size: Some(3), ..Default::default() };
        assert_eq!(paged(rig, everybody).await?, all);
        let nobody = v1::ListSessionsRequest { session_id: Some("s-9".into()), ..Default::default() };
        assert_eq!(sessions(rig, nobody).await?, []);

        // After a crash nothing runs, and what they were is still known.
        rig.daemon.kill().await?;
        rig.daemon = Daemon::start(rig.place()).await?;
        let again = sessions(rig, v1::ListSessionsRequest::default()).await?;
        assert!(again.iter().all(|s| s.executor() == ExecutorState::None && s.running_turn_id.is_empty()));
        let kept = |all: &[v1::SessionSummary]| {
            all.iter().map(|s| (s.session_id.clone(), s.epoch, s.released, s.placement.clone())).collect::<Vec<_>>()
        };
        assert_eq!(kept(&again), kept(&all));
        assert_eq!(again[1].native_session_id, native);
        drop(unused);
        Ok(())
    });
}

#[test]
fn only_an_operator_sees_all_principals() {
    let setup = Setup::outer().bridge(OWN).over(Link::Unix).with("operator_uids = []");
    scenario("list_not_authorized", &["R-ASG-5", "R-API-4"], setup, async |rig| {
        let session = bind(rig, "s-1").await?;
        let client = rig.client().await?;
        let all = v1::ListSessionsRequest { all_principals: true, ..Default::default() };
        refusal(client.list_sessions(all).await, Reason::NotAuthorized).says("operator_uids");
        refusal(client.drain(v1::DrainRequest {}).await, Reason::NotAuthorized);
        let mut assignment = session.assignment().clone();
        assignment.epoch = 2;
        let release = |principal: &str| v1::ReleaseAssignmentRequest {
            assignment: Some(assignment.clone()),
            remove_home: false,
            principal: Some(principal.into()),
        };
        refusal(client.release_assignment(release("uid:4242")).await, Reason::NotAuthorized);
        let own = sessions(rig, v1::ListSessionsRequest::default()).await?;
        assert_eq!((own.len(), own[0].released), (1, false));
        // One's own principal may be named by anybody.
        client.release_assignment(release(&own[0].principal)).await?;
        for (request, field) in [
            (v1::ListSessionsRequest { page_size: Some(0), ..Default::default() }, "page_size"),
            (v1::ListSessionsRequest { page_size: Some(501), ..Default::default() }, "page_size"),
            (v1::ListSessionsRequest { page_token: "t1".into(), ..Default::default() }, "page_token"),
            (v1::ListSessionsRequest { session_id: Some("a/b".into()), ..Default::default() }, "session_id"),
        ] {
            refusal(client.list_sessions(request).await, Reason::InvalidRequest).at(field);
        }
        Ok(())
    });
}

async fn request(
    rig: &Rig,
    session: &Session,
    page_size: Option<u32>,
    page_token: &str,
) -> Result<v1::ListTurnsResponse, proto::client::Error> {
    let assignment = Some(session.assignment().clone());
    rig.core().await?.list_turns(v1::ListTurnsRequest { assignment, page_size, page_token: page_token.into() }).await
}

async fn list_turns(
    rig: &Rig,
    session: &Session,
    page_size: Option<u32>,
    page_token: &str,
) -> anyhow::Result<v1::ListTurnsResponse> {
    Ok(request(rig, session, page_size, page_token).await?)
}

/// The ids of a page, and the token of the next.
async fn turns(
    rig: &Rig,
    session: &Session,
    page_size: Option<u32>,
    page_token: &str,
) -> anyhow::Result<(Vec<String>, String)> {
    let page = list_turns(rig, session, page_size, page_token).await?;
    Ok((page.turns.into_iter().map(|turn| turn.turn_id).collect(), page.next_page_token))
}

async fn sessions(rig: &Rig, request: v1::ListSessionsRequest) -> anyhow::Result<Vec<v1::SessionSummary>> {
    let answer = rig.client().await?.list_sessions(request).await?;
    anyhow::ensure!(answer.next_page_token.is_empty(), "there are more");
    Ok(answer.sessions)
}

/// All pages of a question.
async fn paged(rig: &Rig, mut request: v1::ListSessionsRequest) -> anyhow::Result<Vec<v1::SessionSummary>> {
    let client = rig.client().await?;
    let mut all = Vec::new();
    loop {
        let page = client.list_sessions(request.clone()).await?;
        let full = request.page_size.map(|size| size as usize) == Some(page.sessions.len());
        anyhow::ensure!(full || page.next_page_token.is_empty(), "a page is short");
        all.extend(page.sessions);
        if page.next_page_token.is_empty() {
            return Ok(all);
        }
        request.page_token = page.next_page_token;
    }
}

fn higher(session: &Session) -> v1::AssignmentRef {
    let mut assignment = session.assignment().clone();
    assignment.epoch += 1;
    assignment
}

fn workspace(rig: &Rig) -> v1::bind_assignment_request::Placement {
    v1::bind_assignment_request::Placement::Workspace(directory(rig))
}

fn placed(rig: &Rig) -> v1::session_summary::Placement {
    v1::session_summary::Placement::Workspace(directory(rig))
}

fn directory(rig: &Rig) -> v1::Workspace {
    v1::Workspace { environment_id: "env-1".into(), directory: rig.workspace().to_string_lossy().into_owned() }
}

async fn bind(rig: &Rig, session_id: &str) -> anyhow::Result<Session> {
    bind_at(rig, session_id, workspace(rig)).await
}

async fn bind_at(
    rig: &Rig,
    session_id: &str,
    placement: v1::bind_assignment_request::Placement,
) -> anyhow::Result<Session> {
    let assignment = v1::AssignmentRef { session_id: session_id.into(), assignment_id: "a-1".into(), epoch: 1 };
    Session::bind(rig.client().await?, assignment, placement).await.context("bind")
}
