//! What is never told.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use secrecy::{ExposeSecret, SecretString};

/// Secrets that came later and are remembered at most; the oldest is forgotten first.
const REMEMBERED: usize = 16;

/// Keys, bearers and variables that somebody may repeat to the Harness, and that are cut out of native texts before they leave (R-SEC-6). Shared: whoever
/// gives an Executor's requests another key adds it here.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// Those that were there at the start.
    first: Arc<[SecretString]>,
    later: Arc<Mutex<VecDeque<SecretString>>>,
}

impl Secrets {
    /// Cuts this one out from now on.
    pub fn add(&self, secret: &SecretString) {
        let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = self.first.iter().chain(&*later);
        if secret.expose_secret().is_empty() || known.any(|one| one.expose_secret() == secret.expose_secret()) {
            return;
        }
        if later.len() == REMEMBERED {
            later.pop_front();
        }
        later.push_back(secret.clone());
    }

    /// The text without them.
    pub(crate) fn cut(&self, text: &str) -> String {
        let later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<&str> = self.first.iter().chain(&*later).map(ExposeSecret::expose_secret).collect();
        // A secret may begin another one.
        all.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        all.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "[key]"))
    }
}

impl<'a> FromIterator<&'a SecretString> for Secrets {
    fn from_iter<T: IntoIterator<Item = &'a SecretString>>(secrets: T) -> Self {
        let first = secrets.into_iter().filter(|secret| !secret.expose_secret().is_empty());
        Self { first: first.cloned().collect(), later: Arc::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_that_come_later_are_cut_as_well() {
        let secrets: Secrets = Some(&SecretString::from("one")).into_iter().collect();
        let shared = secrets.clone();
        secrets.add(&"two".into());
        secrets.add(&"".into());
        assert_eq!(shared.cut("one, two, three"), "[key], [key], three");
        for number in 0..REMEMBERED {
            secrets.add(&format!("key-{number}").into());
        }
        assert_eq!(shared.cut("one two key-0 key-15"), "[key] two [key] [key]");
    }
}
