//! Where the key of the model provider comes from.

use std::{fs::File, io::Read as _, os::unix::fs::PermissionsExt as _, path::Path};

use secrecy::SecretString;

use super::arguments::UsageError;

/// Largest key in bytes, the protocol's own limit.
const MAX_BYTES: u64 = 16 * 1024;

/// Reads a key from a file that only its owner can read, and that this flag names. White space around it does not count.
pub(super) fn from_file(flag: &str, path: &Path) -> Result<SecretString, UsageError> {
    let refuse = |why: String| UsageError(format!("{flag} {}: {why}", path.display()));
    let file = File::open(path).map_err(|error| refuse(error.to_string()))?;
    let metadata = file.metadata().map_err(|error| refuse(error.to_string()))?;
    if !metadata.is_file() {
        return Err(refuse("is not a file".into()));
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(refuse(format!("others can use it (mode {mode:04o}); make it 0600")));
    }
    let mut text = String::new();
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(|_| refuse("is not readable as UTF-8 text".into()))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(refuse("is larger than 16 KiB".into()));
    }
    match text.trim() {
        "" => Err(refuse("is empty".into())),
        key => Ok(key.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use secrecy::ExposeSecret as _;

    use super::*;
    use crate::cli::run::folders::tests::scratch;

    #[test]
    fn a_key_file_is_for_its_owner_alone() {
        let folder = scratch("key");
        let path = folder.join("key");
        let read = |mode, content: &str| {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            from_file("--key-file", &path).map(|key| key.expose_secret().to_owned()).map_err(|error| error.0)
        };
        assert_eq!(read(0o600, "sk-1\n").unwrap(), "sk-1");
        assert_eq!(read(0o400, " sk-1 ").unwrap(), "sk-1");
        for mode in [0o640, 0o604, 0o660] {
            let refused = read(mode, "sk-1").unwrap_err();
            assert!(refused.ends_with(&format!("others can use it (mode {mode:04o}); make it 0600")), "{refused}");
        }
        assert!(read(0o600, "\n").unwrap_err().ends_with("is empty"));
        assert!(read(0o600, &"k".repeat(16 * 1024 + 1)).unwrap_err().ends_with("is larger than 16 KiB"));
        assert!(from_file("--key-file", &folder).unwrap_err().0.ends_with("is not a file"));
        assert!(from_file("--key-file", &folder.join("none")).unwrap_err().0.contains("No such file"));
    }
}
