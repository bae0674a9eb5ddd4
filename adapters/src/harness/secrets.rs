//! What is never told.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use secrecy::{ExposeSecret, SecretString};

/// Secrets that were replaced and are remembered at most; the oldest is forgotten first.
const REMEMBERED: usize = 64;

/// Keys, bearers and variables that somebody may repeat to the Harness, and that are cut out of native texts before they leave (R-SEC-6). Shared: whoever
/// gives an Executor's requests another key adds it here.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// Those that were there at the start.
    first: Arc<[SecretString]>,
    later: Arc<Mutex<Later>>,
}

#[derive(Debug, Default)]
struct Later {
    /// Those that are in use. None of them is forgotten, however many there are.
    current: Vec<SecretString>,
    replaced: VecDeque<SecretString>,
}

impl Secrets {
    /// Cuts out these from now on, which are all that are in use now. Those before them may still be repeated, so they are remembered for a while.
    pub fn set_current<'a>(&self, secrets: impl IntoIterator<Item = &'a SecretString>) {
        let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        let current = secrets.into_iter().filter(|secret| !secret.expose_secret().is_empty()).cloned().collect();
        let before = std::mem::replace(&mut later.current, current);
        for secret in before {
            let is_same = |one: &SecretString| one.expose_secret() == secret.expose_secret();
            if later.current.iter().chain(&*self.first).chain(&later.replaced).any(is_same) {
                continue;
            }
            later.replaced.push_back(secret);
        }
        // As many as were in use at once may have been replaced together.
        let most = REMEMBERED.max(later.current.len());
        while later.replaced.len() > most {
            later.replaced.pop_front();
        }
    }

    /// The text without them.
    pub(crate) fn cut(&self, text: &str) -> String {
        let later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.first.iter().chain(&later.current).chain(&later.replaced);
        let mut all: Vec<&str> = all.map(ExposeSecret::expose_secret).collect();
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
        secrets.set_current([&"two".into(), &"".into()]);
        assert_eq!(shared.cut("one, two, three"), "[key], [key], three");
        for number in 0..=REMEMBERED {
            secrets.set_current([&format!("key-{number}-").into()]);
        }
        assert_eq!(shared.cut("one two key-0- key-64-"), "[key] two [key] [key]");
    }

    #[test]
    fn no_secret_in_use_is_forgotten_however_many_there_are() {
        let secrets = Secrets::default();
        let bearers = |generation: usize| -> Vec<SecretString> {
            (0..200).map(|number| format!("bearer-{generation}-{number}-").into()).collect()
        };
        let mut current = bearers(0);
        secrets.set_current(&current);
        // Each is refreshed by itself.
        for (index, fresh) in bearers(1).into_iter().enumerate() {
            current[index] = fresh;
            secrets.set_current(&current);
        }
        for generation in 0..2 {
            let all: Vec<_> = bearers(generation).iter().map(|one| one.expose_secret().to_owned()).collect();
            assert_eq!(secrets.cut(&all.concat()), "[key]".repeat(200), "{generation}");
        }
    }
}
