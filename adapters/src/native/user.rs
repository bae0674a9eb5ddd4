//! The user under whom Harnesses run, where it is not the daemon's own (R-SEC-1): what it is to the keeper, and the folders and files that are made
//! for it. What it owns it may have filled with links; nothing here follows one.

use std::{
    fmt,
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Component, Path},
    process::Stdio,
    time::Duration,
};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fchmod, fchown, fstat, mkdirat, openat,
        renameat, unlinkat,
    },
    io::Errno,
    process::{getegid, geteuid},
};
use tokio::{process::Command, time};

use super::{folder::Folder, served};

/// LIMIT: how deep a folder that is handed over may be; each level holds a descriptor.
const DEPTH: usize = 128;
/// LIMIT: how long the look whether a folder can be entered, or the keeper be executed, may take.
const LOOKS: Duration = Duration::from_secs(10);

/// A user of the system, who is neither root nor the daemon's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its number.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its other groups.
    pub groups: Vec<u32>,
}

/// As the keeper reads it: `uid:gid`, and behind another colon the other groups.
impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)?;
        for (index, group) in self.groups.iter().enumerate() {
            write!(f, "{}{group}", if index == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

impl User {
    /// Whether the user may enter a folder, asked of the system by a process of that user.
    ///
    /// # Errors
    /// Why not, for a person.
    pub async fn enter(&self, keeper: &Path, folder: &Path) -> Result<(), String> {
        let Self { uid, gid, .. } = self;
        let refused = |why| format!("the harness_user (uid {uid}, gid {gid}) cannot enter {}: {why}", folder.display());
        self.ask(keeper, folder, false).await.map_err(refused)
    }

    /// Whether the user may execute the keeper's program, where a Harness is to start it.
    ///
    /// # Errors
    /// Why not, for a person.
    pub async fn execute(&self, keeper: &Path) -> Result<(), String> {
        let Self { uid, gid, .. } = self;
        let refused = |why| {
            format!("the harness_user (uid {uid}, gid {gid}) cannot execute the keeper {}: {why}", keeper.display())
        };
        self.ask(keeper, Path::new("/"), true).await.map_err(refused)
    }

    /// Has the keeper become the user in a folder, and execute itself there.
    async fn ask(&self, keeper: &Path, folder: &Path, executes: bool) -> Result<(), String> {
        let keeper = std::path::absolute(keeper).map_err(|error| error.to_string())?;
        let mut command = Command::new(&keeper);
        command.arg("as").arg(self.to_string()).arg(folder).current_dir("/").env_clear();
        if executes {
            command.arg(&keeper).arg(served::NOTHING);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        match time::timeout(LOOKS, command.output()).await {
            Err(_late) => Err("there was no answer".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => {
                let said = String::from_utf8_lossy(&output.stderr);
                let why = said.trim().rsplit_once(": ").map_or("the keeper does not say why", |(_, why)| why);
                Err(why.to_owned())
            }
        }
    }
}

/// Makes a folder on the way to what a Harness has, with those above it: its user may pass it and cannot list it. It belongs to the daemon, so nobody
/// else puts anything into it.
///
/// # Errors
/// What the system says.
pub fn make_passable(path: &Path, user: Option<&User>) -> io::Result<()> {
    make_private(path)?;
    let Some(user) = user else { return Ok(()) };
    let folder = Folder::open(path)?;
    let stat = fstat(&folder.0)?;
    if stat.st_gid != user.gid {
        fchown(&folder.0, None, Some(Gid::from_raw(user.gid)))?;
    }
    if stat.st_mode & 0o777 != 0o710 {
        fchmod(&folder.0, Mode::from_raw_mode(0o710))?;
    }
    Ok(())
}

/// Makes a private folder for what a Harness has, with those above it. One of another owner is handed over with all that the owner had in it, also
/// back to us where Harnesses have no user of their own any more; the one above it must be the daemon's, so that it is the folder that is meant.
///
/// # Errors
/// What the system says.
pub fn make_own(path: &Path, user: Option<&User>) -> io::Result<()> {
    make_private(path)?;
    let (uid, gid) = match user {
        Some(user) => (Uid::from_raw(user.uid), Gid::from_raw(user.gid)),
        None if geteuid().is_root() => (geteuid(), getegid()),
        // Nobody but root hands anything over.
        None => return Ok(()),
    };
    let folder = Folder::open(path)?;
    let stat = fstat(&folder.0)?;
    if stat.st_uid == uid.as_raw() {
        return Ok(());
    }
    // ORDER: what is in it goes first. Until the folder itself is the user's nobody of that user can be in it, and what was broken off begins anew.
    match hand_over(folder, &stat, (uid, gid), DEPTH) {
        // A file system may have owners of its own, and we may do everything in what is not given back.
        Err(error) if user.is_none() => {
            tracing::warn!(path = %path.display(), %error, "a folder was not given back to the daemon");
            Ok(())
        }
        done => done,
    }
}

/// Writes a private file of a Harness in one piece.
///
/// # Errors
/// What the system says.
pub fn write_own(path: &Path, text: &str, user: Option<&User>) -> io::Result<()> {
    let fresh = path.with_added_extension("new");
    // What a start that broke off has left, or a link that somebody has planted.
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&fresh)?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    if let Some(user) = user {
        fchown(&file, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?;
    }
    fs::rename(fresh, path)
}

/// Makes private folders below one of a Harness, whose user may change what leads to them: no link on the way is followed (R-SEC-1).
///
/// # Errors
/// What the system says, and where the path is none below.
pub(crate) fn make_below(top: &Path, path: &Path, user: Option<&User>) -> io::Result<Folder> {
    let mut folder = Folder::open(top)?;
    for part in path.components() {
        let Component::Normal(name) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
        match mkdirat(&folder.0, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        folder = folder.folder(name)?;
        // Ours is what was made just now, or by a start that broke off: nobody else can bring such a folder here.
        if let Some(user) = user
            && fstat(&folder.0)?.st_uid == geteuid().as_raw()
        {
            fchown(&folder.0, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?;
        }
    }
    Ok(folder)
}

/// Writes a private file below a folder of a Harness in one piece, with the folders on the way, as [`make_below`] does.
///
/// # Errors
/// What the system says.
pub(crate) fn write_below(top: &Path, path: &Path, text: &str, user: Option<&User>) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let Folder(folder) = make_below(top, path.parent().unwrap_or(Path::new("")), user)?;
    let fresh = Path::new(name).with_added_extension("new");
    // What a start that broke off has left, or a link that somebody has planted.
    match unlinkat(&folder, &fresh, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(&folder, &fresh, flags, Mode::RUSR | Mode::WUSR)?);
    io::Write::write_all(&mut file, text.as_bytes())?;
    if let Some(user) = user {
        fchown(&file, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?;
    }
    Ok(renameat(&folder, &fresh, &folder, name)?)
}

fn make_private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Hands over what the owner of a folder has in it, then the folder. What is not that owner's, and a file that
/// has other names, may be a second name of something elsewhere, and stays.
fn hand_over(Folder(folder): Folder, owned: &Stat, to: (Uid, Gid), depth: usize) -> io::Result<()> {
    if depth == 0 {
        return Err(io::Error::other(format!("more than {DEPTH} folders lie in each other")));
    }
    let (uid, gid) = (Some(to.0), Some(to.1));
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        // ORDER: held first, so that what is looked at is what is handed over.
        let held = openat(&folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = fstat(&held)?;
        if stat.st_uid != owned.st_uid || stat.st_dev != owned.st_dev {
            continue;
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => hand_over(Folder::below(&held, c".")?, owned, to, depth - 1)?,
            FileType::RegularFile if stat.st_nlink > 1 => {
                tracing::warn!(name = %name.to_string_lossy(), "a file with other names is not handed over");
            }
            _ => chownat(&held, c"", uid, gid, AtFlags::EMPTY_PATH)?,
        }
    }
    Ok(fchown(&folder, uid, gid)?)
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        os::unix::fs::{MetadataExt as _, symlink},
        path::PathBuf,
        process,
    };

    use super::*;

    const NOBODY: u32 = 65_534;

    struct Place(PathBuf);

    impl Place {
        fn make(name: &str) -> Self {
            let path = env::temp_dir().join(format!("adapters-user-{}-{name}", process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Owner, group and mode.
    fn has(path: &Path) -> (u32, u32, u32) {
        let found = fs::symlink_metadata(path).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o777)
    }

    #[test]
    fn the_keeper_is_told_all_numbers() {
        let user = |groups: &[u32]| User { uid: 1, gid: 2, groups: groups.to_vec() }.to_string();
        assert_eq!((user(&[]), user(&[3]), user(&[3, 4])), ("1:2".into(), "1:2:3".into(), "1:2:3,4".into()));
    }

    #[test]
    fn without_a_user_everything_is_private() {
        let place = Place::make("none");
        let (on_the_way, own, file) = (place.0.join("a/b"), place.0.join("a/b/c"), place.0.join("a/b/c/file"));
        make_passable(&on_the_way, None).unwrap();
        make_own(&own, None).unwrap();
        // A link that somebody has put there is not followed.
        symlink(place.0.join("elsewhere"), place.0.join("a/b/c/file.new")).unwrap();
        write_own(&file, "text", None).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "text");
        assert!(!place.0.join("elsewhere").exists());
        for (path, mode) in [(&on_the_way, 0o700), (&own, 0o700), (&file, 0o600)] {
            assert_eq!(has(path).2, mode, "{}", path.display());
        }
        assert_eq!(has(&place.0.join("a")).2, 0o700);
    }

    #[test]
    fn what_leads_to_a_file_of_a_harness_is_no_link() {
        let place = Place::make("below");
        let top = place.0.join("own");
        make_own(&top, None).unwrap();
        let file = Path::new("a/b/file");
        write_below(&top, file, "one", None).unwrap();
        make_below(&top, Path::new("a/empty"), None).unwrap();
        write_below(&top, file, "two", None).unwrap();
        assert_eq!(fs::read_to_string(top.join(file)).unwrap(), "two");
        for (path, mode) in [("a", 0o700), ("a/b", 0o700), ("a/empty", 0o700), ("a/b/file", 0o600)] {
            assert_eq!(has(&top.join(path)).2, mode, "{path}");
        }
        assert_eq!(fs::read_dir(top.join("a/b")).unwrap().count(), 1);
        // Whoever owns the folder puts a link on the way, or in the place of the file.
        fs::create_dir(place.0.join("elsewhere")).unwrap();
        symlink(place.0.join("elsewhere"), top.join("link")).unwrap();
        assert!(write_below(&top, Path::new("link/file"), "three", None).is_err());
        assert!(make_below(&top, Path::new("a/../.."), None).is_err());
        fs::remove_file(top.join(file)).unwrap();
        for name in ["a/b/file", "a/b/file.new"] {
            symlink(place.0.join("elsewhere/file"), top.join(name)).unwrap();
        }
        write_below(&top, file, "four", None).unwrap();
        assert_eq!(fs::read_to_string(top.join(file)).unwrap(), "four");
        assert_eq!(fs::read_dir(place.0.join("elsewhere")).unwrap().count(), 0);
        // What a start has left that broke off before it handed a folder over.
        if geteuid().is_root() {
            let user = User { uid: NOBODY, gid: NOBODY, groups: Vec::new() };
            write_below(&top, Path::new("a/b/c/file"), "five", Some(&user)).unwrap();
            for path in ["a", "a/b", "a/b/c", "a/b/c/file"] {
                assert_eq!(has(&top.join(path)).0, NOBODY, "{path}");
            }
        }
    }

    #[test]
    fn folders_that_lie_too_deep_in_each_other_are_not_handed_over() {
        let place = Place::make("deep");
        let to = (geteuid(), getegid());
        for (levels, want) in [(DEPTH - 1, true), (DEPTH, false)] {
            let top = place.0.join(levels.to_string());
            fs::create_dir_all(top.join(vec!["d"; levels].join("/"))).unwrap();
            let folder = Folder::open(&top).unwrap();
            let stat = fstat(&folder.0).unwrap();
            assert_eq!(hand_over(folder, &stat, to, DEPTH).is_ok(), want, "{levels}");
        }
    }

    #[test]
    fn what_was_ours_is_handed_over_without_following_a_link() {
        let user = User { uid: NOBODY, gid: NOBODY, groups: Vec::new() };
        let place = Place::make("handed");
        let own = place.0.join("home/own");
        make_passable(&place.0.join("home"), None).unwrap();
        make_own(&own, None).unwrap();
        fs::create_dir_all(own.join("deep/er")).unwrap();
        for file in ["elsewhere", "home/own/file", "home/own/deep/er/file"] {
            fs::write(place.0.join(file), "").unwrap();
        }
        symlink(place.0.join("elsewhere"), own.join("link")).unwrap();
        symlink(&place.0, own.join("folder")).unwrap();
        fs::write(place.0.join("twice"), "").unwrap();
        fs::hard_link(place.0.join("twice"), own.join("deep/twice")).unwrap();
        let (us, group, _) = has(&place.0);
        if us != 0 {
            assert!(make_own(&own, Some(&user)).is_err(), "only root can hand over");
            return;
        }
        make_passable(&place.0.join("home"), Some(&user)).unwrap();
        make_own(&own, Some(&user)).unwrap();
        assert_eq!(has(&place.0.join("home")), (0, NOBODY, 0o710));
        assert_eq!(has(&own), (NOBODY, NOBODY, 0o700));
        for inner in ["file", "link", "folder", "deep", "deep/er", "deep/er/file"] {
            let (uid, gid, _) = has(&own.join(inner));
            assert_eq!((uid, gid), (NOBODY, NOBODY), "{inner}");
        }
        assert_eq!((has(&place.0.join("elsewhere")).0, has(&own.join("deep/twice")).0), (us, us));
        assert_eq!((has(&place.0).0, has(&place.0).1), (us, group));
        write_own(&own.join("file"), "text", Some(&user)).unwrap();
        assert_eq!(has(&own.join("file")), (NOBODY, NOBODY, 0o600));
        // What belongs to neither is a second name of something, and stays.
        let other = User { uid: 12_345, ..user };
        std::os::unix::fs::chown(own.join("file"), Some(NOBODY - 1), None).unwrap();
        make_own(&own, Some(&other)).unwrap();
        assert_eq!((has(&own).0, has(&own.join("deep")).0, has(&own.join("file")).0), (12_345, 12_345, NOBODY - 1));
        // And back to us, where Harnesses have no user of their own any more.
        make_own(&own, None).unwrap();
        assert_eq!((has(&own).0, has(&own.join("deep/er/file")).0, has(&own.join("file")).0), (us, us, NOBODY - 1));
        // A link in the place of the folder is refused.
        fs::rename(&own, place.0.join("home/aside")).unwrap();
        symlink(place.0.join("home/aside"), &own).unwrap();
        assert!(make_own(&own, Some(&other)).is_err());
    }
}
