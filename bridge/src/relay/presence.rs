//! Which Environment is connected (R-ENR-4). One relay keeps it in its memory; several would keep it in a store that they share, behind the same trait.

use std::{collections::BTreeMap, fmt, sync::Arc, time::SystemTime};

use tokio::sync::watch;

/// The present connection of an Environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Present {
    /// Its number; a later connection has a higher one.
    pub(crate) connection: u64,
    /// Since when it is there, for a person.
    pub(crate) since: SystemTime,
    /// Which Runtime it is.
    pub(crate) runtime_id: String,
}

/// All Environments that are connected, by id.
pub(crate) type Everyone = Arc<BTreeMap<String, Present>>;

/// Keeps who is connected.
pub(crate) trait Presence: fmt::Debug + Send + Sync {
    /// An Environment has a connection, in the place of an older one.
    fn came(&self, environment_id: &str, present: Present);

    /// A connection is gone. One that was replaced meanwhile takes nothing away.
    fn went(&self, environment_id: &str, connection: u64);

    /// Who is there, and a bell for changes.
    fn watch(&self) -> watch::Receiver<Everyone>;
}

/// Presence in the memory of one relay.
#[derive(Debug, Default)]
pub(crate) struct Local(watch::Sender<Everyone>);

impl Presence for Local {
    fn came(&self, environment_id: &str, present: Present) {
        self.0.send_modify(|everyone| {
            Arc::make_mut(everyone).insert(environment_id.to_owned(), present);
        });
    }

    fn went(&self, environment_id: &str, connection: u64) {
        self.0.send_if_modified(|everyone| {
            let is_it = everyone.get(environment_id).is_some_and(|present| present.connection == connection);
            if is_it {
                Arc::make_mut(everyone).remove(environment_id);
            }
            is_it
        });
    }

    fn watch(&self) -> watch::Receiver<Everyone> {
        self.0.subscribe()
    }
}

/// What changed from one look to the next; whoever is gone has no connection.
pub(crate) fn changes(before: &Everyone, now: &Everyone) -> Vec<(String, Option<Present>)> {
    let came = now.iter().filter(|(id, present)| before.get(*id) != Some(present));
    let came = came.map(|(id, present)| (id.clone(), Some(present.clone())));
    let went = before.keys().filter(|id| !now.contains_key(*id)).map(|id| (id.clone(), None));
    came.chain(went).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_connection_takes_nothing_away_and_changes_are_told_once() {
        let local = Local::default();
        let present = |connection| Present { connection, since: SystemTime::UNIX_EPOCH, runtime_id: "r".into() };
        let mut watch = local.watch();
        local.came("a", present(1));
        local.came("b", present(2));
        local.came("a", present(3));
        let first = watch.borrow_and_update().clone();
        assert_eq!(changes(&Everyone::default(), &first).len(), 2);
        local.went("a", 1);
        assert!(!watch.has_changed().unwrap());
        local.went("b", 2);
        local.came("c", present(4));
        let second = watch.borrow_and_update().clone();
        assert_eq!(changes(&first, &second), [("c".into(), Some(present(4))), ("b".into(), None)]);
        assert!(changes(&second, &second).is_empty());
    }
}
