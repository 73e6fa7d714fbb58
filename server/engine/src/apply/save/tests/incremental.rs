//! Checkpoints that extend another one: all records of the first one with the changes of those after it are the records
//! at the cut of the last.

use super::*;

const fn mark(number: u64, extends: Option<u64>) -> CheckpointMark {
    let notes = true;
    CheckpointMark {
        number,
        extends,
        notes,
    }
}

/// What a save that extends another one does not know; it is its only message.
fn unknown(saved: &Saved) -> String {
    let pieces: Vec<SavePiece> = saved.pieces.try_iter().map(|(_, piece)| piece).collect();
    match &pieces[..] {
        [SavePiece::ChangesUnknown { why, .. }] => why.clone(),
        other => panic!("{other:?}"),
    }
}

impl Rig {
    /// Takes a checkpoint while pushes, ticks and removals go on. Returns all records at its cut, and what was copied.
    fn checkpoint(&mut self, number: u64, extends: Option<u64>) -> (Model, Model, Vec<(u32, u64)>) {
        let mark = mark(number, extends);
        let saved = self.begin(NO_LIMIT, Vec::new(), Some(mark));
        assert!(self.engine.save_step(), "the cut");
        let expected = self.model();
        loop {
            (0..self.under(3)).for_each(|_| self.act());
            if !self.engine.save_step() {
                break;
            }
        }
        let (copied, removed) = self.copied(&saved);
        (expected, copied, removed)
    }
}

/// Random pushes, ticks, new rows and removals between checkpoints and during them.
#[test]
fn changes_upon_their_base_have_the_bits_of_the_cut() {
    let (mut changed, mut removals) = (0, 0);
    for seed in 0..8 {
        let mut rig = Rig::new(seed);
        let (expected, mut model, removed) = rig.checkpoint(10, None);
        assert!(model == expected && removed.is_empty(), "seed {seed}");
        for number in 11..16 {
            (0..10).for_each(|_| rig.act());
            if number == 13 {
                // A save of a worker in between changes nothing.
                let saved = rig.save(NO_LIMIT, Vec::new());
                while rig.engine.save_step() {}
                assert!(rig.saved(&saved) == rig.model());
            }
            let (expected, copied, removed) = rig.checkpoint(number, Some(number - 1));
            changed += expected.len() - copied.len();
            removals += removed.len();
            for row in removed {
                model.remove(&row);
            }
            model.extend(copied);
            assert!(model == expected, "seed {seed}, checkpoint {number}");
        }
    }
    assert!(
        changed > 1_000,
        "{changed} records were not copied: a checkpoint holds more than changes"
    );
    assert!(removals > 50, "{removals}");
}

/// Nothing has changed: nothing is copied.
#[test]
fn checkpoint_without_changes_is_empty() {
    let mut rig = Rig::new(1);
    for (number, extends) in [(1, None), (2, Some(1)), (3, Some(2))] {
        let mark = mark(number, extends);
        let saved = rig.begin(NO_LIMIT, Vec::new(), Some(mark));
        while rig.engine.save_step() {}
        let (copied, removed) = rig.copied(&saved);
        assert_eq!(copied.is_empty(), extends.is_some(), "{number}");
        assert!(removed.is_empty());
    }
}

/// Changes are those since one cut: a checkpoint that extends another one is refused, and leaves the table free for one
/// of all records.
#[test]
fn changes_since_another_checkpoint_are_refused() {
    let mut rig = Rig::new(2);
    let first = mark(5, Some(4));
    let saved = rig.begin(NO_LIMIT, Vec::new(), Some(first));
    while rig.engine.save_step() {}
    assert!(unknown(&saved).contains("not noted"));
    rig.checkpoint(5, None);
    // One that is ended after its cut: its changes are not those of checkpoint 5 any more.
    let second = mark(6, Some(5));
    let saved = rig.begin(NO_LIMIT, Vec::new(), Some(second));
    assert!(rig.engine.save_step());
    saved.memory.cancel();
    while rig.engine.save_step() {}
    drop(saved);
    rig.act();
    let saved = rig.begin(NO_LIMIT, Vec::new(), Some(second));
    while rig.engine.save_step() {}
    let why = unknown(&saved);
    assert!(why.contains("since checkpoint 6, not since 5"), "{why}");
    let (expected, copied, _) = rig.checkpoint(6, None);
    assert!(copied == expected);
}

/// After a checkpoint that none will extend no changes are noted, and one that waits for its clock is refused at once.
#[test]
fn changes_are_noted_where_they_are_needed() {
    let mut rig = Rig::new(3);
    rig.checkpoint(1, None);
    assert!(rig.engine.table(TableId(1)).unwrap().watch().is_on());
    let last = CheckpointMark {
        notes: false,
        ..mark(2, Some(1))
    };
    let saved = rig.begin(NO_LIMIT, Vec::new(), Some(last));
    while rig.engine.save_step() {}
    rig.copied(&saved);
    assert!(!rig.engine.table(TableId(1)).unwrap().watch().is_on());
    let later = vec![(DomainId(0), rig.clocks[0] + 5)];
    let saved = rig.begin(NO_LIMIT, later, Some(mark(3, Some(2))));
    assert!(unknown(&saved).contains("not noted"));
    assert!(!rig.engine.save_step(), "nothing is left of it");
}

/// What noting changes costs a push of rows that are far apart.
#[test]
#[ignore = "a measurement: prints the time of a row without and with noted changes"]
fn measure_noting() {
    const PUSHES: u64 = 4_000;
    let time = |rig: &mut Rig| {
        let began = tidewater_runtime::clock::now();
        for n in 0..PUSHES {
            let keys = (0..100).map(|key| (key * 29 + n) % KEYS);
            rig.push_keys(1, 0, keys);
        }
        began.elapsed().as_secs_f64() * 1e9 / (PUSHES * 100) as f64
    };
    let (mut plain, mut noting) = (Rig::new(1), Rig::new(1));
    noting.checkpoint(1, None);
    for _ in 0..5 {
        let (without, with) = (time(&mut plain), time(&mut noting));
        println!("a row takes {without:.1} ns, with noted changes {with:.1} ns");
    }
}
