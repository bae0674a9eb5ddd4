//! The places of streams: how many are open at once, of one Turn and of all. A stream takes memory that its peer alone gives back, by reading
//! or by going away, so that their number has a bound.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    refusal::{Reason, Refusal},
    session::Key,
};

/// Streams of one kind that read one Turn under one epoch. Those of an earlier epoch take no place from the Core that took over.
const OF_A_TURN: usize = 64;

/// Streams of one kind, of all Turns together.
const TOGETHER: usize = 1024;

/// What a place is taken of: a Session's Turn, under an epoch.
pub(super) type Place = (Key, String, u64);

/// The places of streams of one kind. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Seats(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    together: usize,
    of_a_turn: BTreeMap<Place, usize>,
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Seats,
    place: Place,
}

impl Seats {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        // The numbers fit together between any two statements that change them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place, where there is one.
    pub(super) fn take(&self, place: Place) -> Result<Seat, Refusal> {
        let mut taken = self.lock();
        let of_a_turn = taken.of_a_turn.get(&place).copied().unwrap_or(0);
        let text = match (of_a_turn < OF_A_TURN, taken.together < TOGETHER) {
            (true, true) => {
                taken.together += 1;
                taken.of_a_turn.insert(place.clone(), of_a_turn + 1);
                return Ok(Seat { seats: self.clone(), place });
            }
            (false, _) => "too many streams of this kind read this Turn",
            (true, false) => "too many streams of this kind are open",
        };
        Err(Refusal::new(Reason::Overloaded, text).with("retry_ms", 100))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.lock();
        taken.together = taken.together.saturating_sub(1);
        if let Some(left) = taken.of_a_turn.get_mut(&self.place) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                taken.of_a_turn.remove(&self.place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(turn_id: &str, epoch: u64) -> Place {
        (Key { principal: "p".into(), session_id: "s".into() }, turn_id.into(), epoch)
    }

    #[test]
    fn streams_have_a_bound_of_each_turn_and_together() {
        let seats = Seats::default();
        let mut held = Vec::new();
        for turn in 0..TOGETHER / OF_A_TURN {
            let place = place(&format!("t-{turn}"), 1);
            held.extend((0..OF_A_TURN).map(|_| seats.take(place.clone()).unwrap()));
            let refused = seats.take(place).unwrap_err();
            assert_eq!((refused.reason, &*refused.metadata[0].1), (Reason::Overloaded, "100"));
        }
        // All of them are taken, also for another Turn and another epoch.
        for other in [place("another", 1), place("t-0", 2)] {
            assert_eq!(seats.take(other).unwrap_err().reason, Reason::Overloaded);
        }
        drop(held.pop());
        held.push(seats.take(place("t-0", 2)).unwrap());
        assert_eq!(seats.take(place("t-0", 2)).unwrap_err().text, "too many streams of this kind are open");
        held.clear();
        let taken = seats.lock();
        assert_eq!((taken.together, taken.of_a_turn.len()), (0, 0));
    }
}
