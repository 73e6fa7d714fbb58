//! Handles: numbers that name the objects that a session keeps for its caller, and that differ from any
//! other number.
//!
//! | bits | contents |
//! |---|---|
//! | 60..64 | the kind of object: a table, a push, a pull, results |
//! | 44..60 | the session: 16 random bits |
//! | 20..44 | the generation of the slot, from a random number on |
//! | 0..20 | the slot |
//!
//! Zero is therefore never a handle. A handle of another kind, another session or a removed object
//! names nothing, except with a chance of 2^-40.

use tidewater_protocol::limits::HANDLES_MAX;

use crate::error::Failure;
use crate::types::tw_status;

const SLOT_BITS: u32 = 20;
const GENERATION_BITS: u32 = 24;
const TAG_BITS: u32 = 16;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

/// Kind of object that a handle names. The numbers are in its top bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Table = 1,
    Push = 2,
    Pull = 3,
    Results = 4,
    Buffer = 5,
    Call = 6,
    Queue = 7,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Push => "ticket",
            Self::Pull => "pull",
            Self::Results => "results",
            Self::Buffer => "buffer",
            Self::Call => "call",
            Self::Queue => "queue",
        }
    }

    /// What a program does that holds too many.
    const fn remedy(self) -> &'static str {
        match self {
            Self::Push => "wait for some, or give no place for a ticket where you need none",
            Self::Table => "release tables that no worker needs",
            Self::Pull | Self::Call => "finish or drop some",
            Self::Results => "take some",
            Self::Buffer | Self::Queue => "close some",
        }
    }
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Objects of one kind that a session keeps.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    kind: Kind,
    tag: u16,
    first_generation: u32,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T: PartialEq> Handles<T> {
    /// Returns the handle of a value that is kept already, or keeps it as [`Self::add`] does.
    pub(crate) fn add_once(&mut self, value: T) -> Result<u64, Failure> {
        let mut slots = self.slots.iter();
        match slots.position(|slot| slot.value.as_ref() == Some(&value)) {
            Some(at) => Ok(self.handle(at as u32)),
            None => self.add(value),
        }
    }
}

impl<T> Handles<T> {
    /// Makes an empty set. `random` distinguishes the handles of this session from those of others.
    pub(crate) const fn new(kind: Kind, random: u64) -> Self {
        Self {
            kind,
            tag: random as u16,
            first_generation: (random >> TAG_BITS) as u32 & GENERATION_MASK,
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Keeps a value and returns its handle. Allocates only when there are more than ever before.
    pub(crate) fn add(&mut self, value: T) -> Result<u64, Failure> {
        if self.free.is_empty() {
            if self.slots.len() >= HANDLES_MAX {
                let what = self.kind.name();
                return Err(Failure::argument(format_args!(
                    "{HANDLES_MAX} {what} handles are held; {}",
                    self.kind.remedy()
                )));
            }
            self.free.push(self.slots.len() as u32);
            let generation = self.first_generation;
            let value = None;
            self.slots.push(Slot { generation, value });
        }
        let at = self.free.pop().unwrap_or_default();
        let Some(slot) = self.slots.get_mut(at as usize) else {
            return Err(Failure::panicked());
        };
        slot.value = Some(value);
        Ok(self.handle(at))
    }

    /// The handle of the value in a slot.
    fn handle(&self, at: u32) -> u64 {
        let generation = self
            .slots
            .get(at as usize)
            .map_or(0, |slot| slot.generation);
        let (kind, tag) = (self.kind as u64, u64::from(self.tag));
        kind << (SLOT_BITS + GENERATION_BITS + TAG_BITS)
            | tag << (SLOT_BITS + GENERATION_BITS)
            | u64::from(generation) << SLOT_BITS
            | u64::from(at)
    }

    /// Finds the value that a handle names.
    pub(crate) fn get(&self, handle: u64) -> Result<&T, Failure> {
        let value = self.slot_of(handle).and_then(|at| self.slots.get(at));
        let value = value.and_then(|slot| slot.value.as_ref());
        value.ok_or_else(|| self.unknown(handle))
    }

    /// Finds the value that a handle names, for changes.
    pub(crate) fn get_mut(&mut self, handle: u64) -> Result<&mut T, Failure> {
        let unknown = self.unknown(handle);
        let value = self.slot_of(handle).and_then(|at| self.slots.get_mut(at));
        value.and_then(|slot| slot.value.as_mut()).ok_or(unknown)
    }

    /// Removes the value of a handle, which names nothing from then on.
    pub(crate) fn remove(&mut self, handle: u64) -> Result<T, Failure> {
        let at = self.slot_of(handle);
        let slot = at.and_then(|at| self.slots.get_mut(at));
        let taken = slot.and_then(|slot| {
            let value = slot.value.take()?;
            slot.generation = (slot.generation + 1) & GENERATION_MASK;
            Some(value)
        });
        let (Some(value), Some(at)) = (taken, at) else {
            return Err(self.unknown(handle));
        };
        self.free.push(at as u32);
        Ok(value)
    }

    /// The slot that a handle of this kind and session names, if its generation is the slot's.
    fn slot_of(&self, handle: u64) -> Option<usize> {
        let at = (handle & ((1 << SLOT_BITS) - 1)) as usize;
        let generation = (handle >> SLOT_BITS) as u32 & GENERATION_MASK;
        let tag = (handle >> (SLOT_BITS + GENERATION_BITS)) as u16;
        let kind = handle >> (SLOT_BITS + GENERATION_BITS + TAG_BITS);
        let slot = self.slots.get(at)?;
        let mine = (kind, tag, generation) == (self.kind as u64, self.tag, slot.generation);
        mine.then_some(at)
    }

    fn unknown(&self, handle: u64) -> Failure {
        let what = self.kind.name();
        let text = if handle == 0 {
            format!("the {what} is zero, which names nothing")
        } else {
            format!(
                "{handle:#x} names no {what} of this session: it is another session's, or was \
                 released or waited for"
            )
        };
        Failure::new(tw_status::TW_ERR_HANDLE, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_one_handle() {
        let mut handles = Handles::new(Kind::Table, 7);
        let first = handles.add_once('a').unwrap();
        let second = handles.add_once('b').unwrap();
        assert_ne!(first, second);
        for _ in 0..2 * HANDLES_MAX {
            assert_eq!(handles.add_once('a').unwrap(), first);
        }
        handles.remove(first).unwrap();
        let again = handles.add_once('a').unwrap();
        assert_ne!(again, first, "a removed handle names nothing");
        assert_eq!(handles.add_once('b').unwrap(), second);
    }

    #[test]
    fn a_handle_names_its_own_value_until_it_is_gone() {
        let mut handles = Handles::new(Kind::Push, 0x1234_5678_9abc);
        let (a, b) = (handles.add('a').unwrap(), handles.add('b').unwrap());
        assert_eq!(
            (handles.get(a).unwrap(), handles.get(b).unwrap()),
            (&'a', &'b')
        );
        assert_eq!(handles.remove(a).unwrap(), 'a');
        assert!(handles.get(a).is_err() && handles.remove(a).is_err());
        let c = handles.add('c').unwrap();
        assert_ne!(a, c, "the slot is used again, the number is not");
        assert!(handles.get(a).is_err());
        assert_eq!(handles.get(c).unwrap(), &'c');
    }

    #[test]
    fn other_kinds_sessions_and_numbers_name_nothing() {
        let random = 0x00ff_ffff_1234; // the generation wraps with the first reuse
        let mut handles = Handles::new(Kind::Table, random);
        let first = handles.add(1).unwrap();
        handles.remove(first).unwrap();
        let table = handles.add(2).unwrap();
        assert_eq!(handles.get(table).unwrap(), &2);
        for bit in 0..64 {
            assert!(handles.get(table ^ 1 << bit).is_err(), "bit {bit}");
        }
        for wrong in [0, 1, u64::MAX, first] {
            assert_eq!(
                handles.get(wrong).unwrap_err().status,
                tw_status::TW_ERR_HANDLE
            );
        }
        let mut others = Handles::new(Kind::Table, !random);
        assert!(handles.get(others.add(3).unwrap()).is_err());
    }

    #[test]
    fn there_is_a_limit_and_it_says_what_to_do() {
        let mut handles = Handles::new(Kind::Push, 7);
        let all: Vec<u64> = (0..HANDLES_MAX).map(|n| handles.add(n).unwrap()).collect();
        let text = handles.add(0).unwrap_err().text;
        assert!(text.contains("65536 ticket handles"), "{text}");
        handles.remove(all[17]).unwrap();
        handles.add(0).unwrap();
    }
}
