//! The parked flag protocol: a thread parks without losing a wake-up.
//!
//! It is a Dekker-style store/load handshake. Consumer (a client thread, an applier): set the parked flag;
//! full fence; poll every source once more; sleep only if nothing moved. Producer: store the data; full
//! fence; load the parked flag; if it is set, wake the consumer. With a full fence on both sides at least
//! one of them sees the other's store. So either the consumer finds the data in its second poll or the
//! producer wakes it.
//!
//! Pure: a word and two fences, modelled below. `wake` has the wakers, `wait` the loop.

use crate::mem::{Words, WordsMut};
use crate::sync::{Ordering, fence};

/// Consumer's half: sets the parked flag, the first word of the window `word`, then a full fence. From
/// then on producers wake this thread. The consumer polls every source once more before it sleeps.
#[inline]
pub fn set(word: WordsMut<'_>) {
    word.store(0, 1);
    // SYNC: parked flag. Pairs with the fence in `must_wake`.
    fence(Ordering::SeqCst);
}

/// Consumer's half: clears the parked flag, the first word of `word`, after a sleep or instead of one.
/// Producers then no longer wake this thread. A producer that has not yet seen this causes one spurious
/// wake-up.
#[inline]
pub fn clear(word: WordsMut<'_>) {
    word.store(0, 0);
}

/// Producer's half, called after the data was stored: a full fence, then returns whether the consumer's
/// parked flag (the first word of `word`) is set. If true, the caller wakes the consumer; this function
/// does not.
#[inline]
pub fn must_wake(word: Words<'_>) -> bool {
    // SYNC: parked flag. Pairs with the fence in `set`.
    fence(Ordering::SeqCst);
    word.load(0) != 0
}

#[cfg(all(test, loom))]
mod tests {
    use loom::sync::{Condvar, Mutex};
    use loom::thread;

    use super::*;
    use crate::sync::{Arc, AtomicU64};

    /// Loom model of an eventfd: a pending wake-up ends the next sleep, and a sleep blocks while there is
    /// none.
    #[derive(Default)]
    struct ModelWaker {
        rung: Mutex<bool>,
        wake: Condvar,
    }

    impl ModelWaker {
        fn ring(&self) {
            *self.rung.lock().unwrap() = true;
            self.wake.notify_one();
        }

        fn sleep(&self) {
            let mut rung = self.rung.lock().unwrap();
            while !*rung {
                rung = self.wake.wait(rung).unwrap();
            }
            *rung = false;
        }
    }

    /// Loom model of the handshake: a producer stores data twice and wakes a parked consumer; the
    /// consumer waits for both as `wait::wait_until` does. A lost wake-up blocks the consumer for ever,
    /// which loom reports as a deadlock. `second_look` enables the consumer's poll after it set its flag.
    fn doorbell(second_look: bool, must_wake: fn(Words<'_>) -> bool) {
        loom::model(move || {
            let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let waker = Arc::new(ModelWaker::default());
            let producer = {
                let (words, waker) = (Arc::clone(&words), Arc::clone(&waker));
                thread::spawn(move || {
                    for tail in 1..=2 {
                        WordsMut::new(&words[..1]).store(0, tail);
                        if must_wake(Words::new(&words[1..])) {
                            waker.ring();
                        }
                    }
                })
            };
            let look = || Words::new(&words[..1]).load(0) == 2;
            let parked_flag = WordsMut::new(&words[1..]);
            while !look() {
                set(parked_flag);
                if second_look && look() {
                    break;
                }
                waker.sleep();
                clear(parked_flag);
            }
            producer.join().unwrap();
        });
    }

    #[test]
    fn loom_no_wake_up_is_lost() {
        doorbell(true, must_wake);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_finds_the_lost_wake_up_without_the_second_look() {
        doorbell(false, must_wake);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_finds_the_lost_wake_up_without_the_producers_fence() {
        doorbell(true, |word| word.load(0) != 0);
    }
}
