//! `ListTurns` and `ListSessions`: pages, and the tokens between them.

use prost::Message as _;
use proto::v1;

use super::{answer, request};
use crate::{
    journal,
    refusal::Refusal,
    session::{ExecutorState, Key, Listed, Page, TurnsPage},
};

/// Entries of a page that names no number.
const PAGE: u32 = 100;
/// Entries that a page may have.
const MAX_PAGE: u32 = 500;
/// Bytes of Turns that one answer has, unless a single one is larger: with it, the answer stays below what is sent at most.
const MAX_BYTES: usize = 1 << 19;

/// How many entries a page has.
pub(super) fn size(asked: Option<u32>) -> Result<usize, Refusal> {
    match asked.unwrap_or(PAGE) {
        size @ 1..=MAX_PAGE => Ok(usize::try_from(size).unwrap_or(usize::MAX)),
        _ => Err(Refusal::invalid("page_size", format!("a page has 1 to {MAX_PAGE} entries"))),
    }
}

/// The number behind which a page of Turns begins.
pub(super) fn before(token: &str) -> Result<Option<u64>, Refusal> {
    if token.is_empty() {
        return Ok(None);
    }
    let digits = token.strip_prefix('t').filter(|text| is_hex(text));
    let number = digits.and_then(|hex| u64::from_str_radix(hex, 16).ok());
    number.map(Some).ok_or_else(no_token)
}

/// The Session behind which a page begins.
pub(super) fn after(token: &str) -> Result<Option<Key>, Refusal> {
    if token.is_empty() {
        return Ok(None);
    }
    let text = token
        .strip_prefix('s')
        .filter(|text| is_hex(text))
        .and_then(unhex)
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let key = text
        .as_deref()
        .and_then(|text| text.split_once('\0'))
        .map(|(principal, session_id)| Key { principal: principal.to_owned(), session_id: session_id.to_owned() });
    key.map(Some).ok_or_else(no_token)
}

fn no_token() -> Refusal {
    Refusal::invalid("page_token", "this is not a token of this bridge; begin without one")
}

/// A page of Turns. What would make it too large is left to the next one.
pub(super) fn turns(page: TurnsPage) -> v1::ListTurnsResponse {
    let TurnsPage { turns, mut has_more } = page;
    let mut answer = v1::ListTurnsResponse::default();
    let mut room = MAX_BYTES;
    let mut last = 0;
    for (number, snapshot) in turns {
        let turn = answer::turn(snapshot);
        let bytes = turn.encoded_len();
        if bytes > room && !answer.turns.is_empty() {
            has_more = true;
            break;
        }
        room = room.saturating_sub(bytes);
        last = number;
        answer.turns.push(turn);
    }
    if has_more {
        answer.next_page_token = format!("t{last:x}");
    }
    answer
}

/// A page of Sessions.
pub(super) fn sessions(page: Page) -> v1::ListSessionsResponse {
    let last = page.sessions.last().filter(|_| page.has_more);
    let next_page_token = last.map_or_else(String::new, |last| {
        format!("s{}", hex(format!("{}\0{}", last.key.principal, last.key.session_id).as_bytes()))
    });
    v1::ListSessionsResponse { sessions: page.sessions.into_iter().map(summary).collect(), next_page_token }
}

fn summary(of: Listed) -> v1::SessionSummary {
    let placement = match of.placement {
        journal::Placement::None => v1::session_summary::Placement::None(v1::NoPlacement {}),
        journal::Placement::Workspace { environment_id, directory } => {
            v1::session_summary::Placement::Workspace(v1::Workspace { environment_id, directory })
        }
    };
    v1::SessionSummary {
        session_id: of.key.session_id,
        principal: of.key.principal,
        assignment_id: of.assignment_id,
        epoch: of.epoch,
        released: of.released,
        placement: Some(placement),
        executor: match of.executor {
            ExecutorState::None => v1::ExecutorState::None,
            ExecutorState::Preparing => v1::ExecutorState::Preparing,
            ExecutorState::Idle => v1::ExecutorState::Idle,
            ExecutorState::Busy => v1::ExecutorState::Busy,
            ExecutorState::Closing => v1::ExecutorState::Closing,
            ExecutorState::Unconfirmed => v1::ExecutorState::Unconfirmed,
        }
        .into(),
        running_turn_id: of.running_turn_id.unwrap_or_default(),
        native_session_id: of.native_session_id.unwrap_or_default(),
        last_activity: of.last_activity.map(Into::into),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok().filter(|p| p.len() == 2)?, 16).ok()).collect()
}

/// The id of a filter, when there is one.
pub(super) fn filter(session_id: Option<String>) -> Result<Option<String>, Refusal> {
    session_id.map(|id| request::id(id, "session_id")).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_1_to_500_entries() {
        for (asked, size_of) in
            [(None, Some(100)), (Some(0), None), (Some(1), Some(1)), (Some(500), Some(500)), (Some(501), None)]
        {
            assert_eq!(size(asked).ok(), size_of, "{asked:?}");
        }
    }

    #[test]
    fn tokens_are_read_as_they_were_written_and_nothing_else_is() {
        assert_eq!(before("").unwrap(), None);
        assert_eq!(before(&format!("t{:x}", u64::MAX)).unwrap(), Some(u64::MAX));
        assert_eq!(after("").unwrap(), None);
        let key = Key { principal: "uid:0".into(), session_id: "s-1".into() };
        assert_eq!(after(&format!("s{}", hex(b"uid:0\0s-1"))).unwrap(), Some(key));
        for token in ["x", "t", "t+1", "txyz", "s", "s0", "s00g", "s4141", "t10000000000000000", "ß"] {
            let refused = (before(token).is_err(), after(token).is_err());
            assert_eq!(refused, (true, true), "{token}");
        }
    }
}
