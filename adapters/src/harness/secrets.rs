//! What is never told.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use secrecy::{ExposeSecret as _, SecretString};

/// Secrets that are remembered at most; the oldest is forgotten first.
const REMEMBERED: usize = 16;

/// Keys that a model provider may repeat to the Harness, and that are cut out of native texts before they leave (R-SEC-6). Shared: whoever gives an
/// Executor's requests another key adds it here.
#[derive(Clone, Debug, Default)]
pub struct Secrets(Arc<Mutex<VecDeque<SecretString>>>);

impl Secrets {
    /// Cuts this one out from now on.
    pub fn add(&self, secret: &SecretString) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if secret.expose_secret().is_empty() || all.iter().any(|one| one.expose_secret() == secret.expose_secret()) {
            return;
        }
        if all.len() == REMEMBERED {
            all.pop_front();
        }
        all.push_back(secret.clone());
    }

    /// The text without them.
    pub(crate) fn cut(&self, text: &str) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().fold(text.to_owned(), |text, secret| text.replace(secret.expose_secret(), "[key]"))
    }
}

impl<'a> FromIterator<&'a SecretString> for Secrets {
    fn from_iter<T: IntoIterator<Item = &'a SecretString>>(secrets: T) -> Self {
        let all = Self::default();
        secrets.into_iter().for_each(|secret| all.add(secret));
        all
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
        assert_eq!(shared.cut("one key-0"), "one [key]");
    }
}
