//! `harness_user`: whom the operator means, and whether this daemon may have Harnesses run under that user (R-SEC-1).

use std::ffi::CString;

use adapters::native::user::User;
use nix::unistd;
use rustix::{process::geteuid, thread::CapabilitySet};

use super::{Error, value};

const KEY: &str = "harness_user";

/// What a daemon needs whose Harnesses are another user's: to become that user, to give it its folders and to keep them in order, and to see and
/// end its processes. Each with its name for a person.
const NEEDED: [(CapabilitySet, &str); 7] = [
    (CapabilitySet::CHOWN, "CAP_CHOWN"),
    (CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE"),
    (CapabilitySet::FOWNER, "CAP_FOWNER"),
    (CapabilitySet::KILL, "CAP_KILL"),
    (CapabilitySet::SETGID, "CAP_SETGID"),
    (CapabilitySet::SETUID, "CAP_SETUID"),
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"),
];

/// The user that is meant, when this daemon may run Harnesses under it.
pub(super) fn resolve(text: &str) -> Result<User, Error> {
    let user = meant(text).and_then(|user| Ok((may_be(&user)?, user).1)).map_err(|text| value(KEY, text))?;
    may_switch().map_err(|text| value(KEY, text))?;
    Ok(user)
}

/// A name or a number as the system knows it, with its groups; a number that it does not know, and `uid:gid`, has no group but its own.
fn meant(text: &str) -> Result<User, String> {
    if let Some((uid, gid)) = text.split_once(':') {
        let (Some(uid), Some(gid)) = (number(uid), number(gid)) else {
            return Err(format!("`{text}` is neither a user nor `uid:gid` in numbers"));
        };
        return Ok(User { uid, gid, groups: Vec::new() });
    }
    let asked = |error: nix::Error| format!("the system cannot be asked for `{text}`: {error}");
    let found = match number(text) {
        Some(uid) => match unistd::User::from_uid(uid.into()).map_err(asked)? {
            Some(found) => found,
            None => return Ok(User { uid, gid: uid, groups: Vec::new() }),
        },
        None => unistd::User::from_name(text)
            .map_err(asked)?
            .ok_or_else(|| format!("there is no user `{text}` on this machine"))?,
    };
    let name = CString::new(found.name).map_err(|error| error.to_string())?;
    let groups = unistd::getgrouplist(&name, found.gid).map_err(asked)?;
    let groups = groups.into_iter().map(|group| group.as_raw()).collect();
    Ok(User { uid: found.uid.as_raw(), gid: found.gid.as_raw(), groups })
}

/// A number of a user or a group; the highest one stands for none.
fn number(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_plain && *number != u32::MAX)
}

fn may_be(user: &User) -> Result<(), String> {
    if user.uid == 0 {
        return Err("it is root, who can do all that the daemon can; name a user of its own".to_owned());
    }
    if user.uid == geteuid().as_raw() {
        return Err(format!("it is the daemon's own uid {}; name another user", user.uid));
    }
    Ok(())
}

fn may_switch() -> Result<(), String> {
    let uid = geteuid().as_raw();
    if uid != 0 {
        return Err(format!("the daemon has uid {uid}, and only root may run Harnesses under another user"));
    }
    let has = rustix::thread::capabilities(None).map_err(|error| format!("ask for the daemon's rights: {error}"))?;
    let missing = NEEDED.iter().filter(|(right, _)| !has.effective.contains(*right)).map(|(_, name)| *name);
    let missing: Vec<_> = missing.collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!("the daemon is root without {}; give the container these rights", missing.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that no machine has given to anybody.
    const UNKNOWN: u32 = 1_999_999_999;

    #[test]
    fn a_number_that_nobody_has_is_its_own_group_and_a_pair_is_taken_at_its_word() {
        let bare = |uid, gid| Ok(User { uid, gid, groups: Vec::new() });
        assert_eq!(meant(&UNKNOWN.to_string()), bare(UNKNOWN, UNKNOWN));
        assert_eq!(meant("12:34"), bare(12, 34));
        let root = meant("root").unwrap();
        assert_eq!((root.uid, meant("0").unwrap()), (0, root));
    }

    #[test]
    fn what_is_no_user_is_named() {
        for (text, want) in [
            ("", "there is no user ``"),
            ("no such user", "there is no user `no such user`"),
            ("+5", "there is no user `+5`"),
            ("-1", "there is no user `-1`"),
            ("4294967295", "there is no user `4294967295`"),
            ("nobody:nogroup", "neither a user nor `uid:gid`"),
            ("1:", "neither a user nor `uid:gid`"),
            ("1:2:3", "neither a user nor `uid:gid`"),
        ] {
            let refused = meant(text).unwrap_err();
            assert!(refused.contains(want), "{text}: {refused}");
        }
    }

    #[test]
    fn neither_root_nor_the_daemon_itself_is_another_user() {
        let of = |uid| may_be(&User { uid, gid: 1, groups: Vec::new() });
        assert!(of(0).unwrap_err().contains("root"));
        assert!(of(UNKNOWN).is_ok());
        let own = geteuid().as_raw();
        assert!(own == 0 || of(own).unwrap_err().contains("own uid"));
    }
}
