use tidewater_protocol::ids::{Incarnation, WorkerId};
use tidewater_protocol::wire::control::WorkerState;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::*;
use crate::image::{ClusterImage, JobImage, WorkerImage};

fn identity() -> Identity {
    Identity {
        cluster: ClusterId(7),
        port: 4711,
        servers: 1,
        workers: 2,
        checkpoints: None,
    }
}

/// The changes of one step: tables up to `last_table` have been numbered, and a worker has joined.
fn step(last_table: u32) -> Vec<Change> {
    let cluster = ClusterImage {
        last_table,
        ..ClusterImage::default()
    };
    let worker = WorkerImage {
        ended: Vec::new(),
        is_outdated: false,
        is_late: false,
        state: WorkerState::Live,
        incarnation: Incarnation(u64::MAX - 1),
        first: Vec::new(),
        stays: 0,
    };
    vec![
        Change::Cluster(cluster),
        Change::Job("job".into(), Some(Box::default())),
        Change::Worker("job".into(), WorkerId(last_table), Some(worker)),
    ]
}

fn text(image: &Image) -> String {
    serde_json::to_string(image).unwrap()
}

/// Appends the changes of a step, and carries them out.
fn append(journal: &mut Journal, image: &mut Image, changes: Vec<Change>) {
    for change in &changes {
        image.apply(change.clone()).unwrap();
    }
    journal.append(&changes, image).unwrap();
}

/// A journal of three steps; returns its directory, its bytes, and the image before the last step.
fn written() -> (tempfile::TempDir, Vec<u8>, Image) {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path()).unwrap();
    assert_eq!(journal.port(), None);
    journal.begin(identity()).unwrap();
    let mut image = journal.take_image();
    append(&mut journal, &mut image, step(1));
    append(&mut journal, &mut image, step(2));
    let before = image.clone();
    append(&mut journal, &mut image, step(3));
    drop(journal);
    let bytes = fs::read(dir.path().join(NAME)).unwrap();
    (dir, bytes, before)
}

fn reopened(dir: &Path, bytes: &[u8]) -> Journal {
    fs::write(dir.join(NAME), bytes).unwrap();
    Journal::open(dir).unwrap()
}

#[test]
fn journal_resumes_with_all_records() {
    let (dir, bytes, before) = written();
    let mut journal = reopened(dir.path(), &bytes);
    assert_eq!(journal.port(), Some(4711));
    assert_eq!(journal.image.cluster.last_table, 3);
    assert_eq!(journal.image.workers["job"].len(), 3);
    assert_ne!(text(&journal.image), text(&before));
    let image = journal.image.clone();
    journal.begin(identity()).unwrap();
    assert_eq!(journal.incarnation(), Incarnation(2));
    drop(journal);
    let journal = Journal::open(dir.path()).unwrap();
    assert_eq!((text(&journal.image), journal.lines), (text(&image), 1));
    assert!(!dir.path().join(DAMAGED_NAME).exists());
    journal.end().unwrap();
    assert_eq!(Journal::open(dir.path()).unwrap().port(), None);
}

/// A last record that is cut at any byte does not count, and those before it do.
#[test]
fn cut_journal_counts_to_its_last_complete_record() {
    let (dir, bytes, before) = written();
    let last = bytes[..bytes.len() - 1].iter().rposition(|&b| b == b'\n');
    for end in last.unwrap() + 2..bytes.len() {
        let journal = reopened(dir.path(), &bytes[..end]);
        assert_eq!(text(&journal.image), text(&before), "cut at byte {end}");
        let kept = fs::read(dir.path().join(DAMAGED_NAME)).unwrap();
        assert_eq!(kept, &bytes[..end]);
    }
}

/// A digit that has changed gives valid JSON with another number.
#[test]
fn damaged_record_does_not_count() {
    let (dir, mut bytes, before) = written();
    let at = bytes.windows(14).rposition(|w| w == b"\"last_table\":3");
    bytes[at.unwrap() + 13] = b'9';
    let journal = reopened(dir.path(), &bytes);
    assert_eq!(text(&journal.image), text(&before));
}

/// Later records that are complete were answered for: none of them is dropped.
#[test]
fn damage_before_complete_records_is_refused() {
    let (dir, bytes, _) = written();
    let at = bytes.windows(14).position(|w| w == b"\"last_table\":2");
    let at = at.unwrap() + 13;
    let line_end = bytes[at..].iter().position(|&b| b == b'\n').unwrap();
    for (place, byte) in [(at, b'9'), (at, b'\n'), (at + line_end + 20, b'x')] {
        let mut bytes = bytes.clone();
        bytes[place] = byte;
        let is_last = place > at;
        fs::write(dir.path().join(NAME), &bytes).unwrap();
        let opened = Journal::open(dir.path());
        assert_eq!(opened.is_ok(), is_last, "byte {place}: {opened:?}");
        if !is_last {
            let error = opened.unwrap_err().to_string();
            assert!(error.contains("complete records follow"), "{error}");
            assert_eq!(fs::read(dir.path().join(NAME)).unwrap(), bytes);
        }
    }
}

#[test]
fn journal_without_a_complete_record_is_refused() {
    let (dir, bytes, _) = written();
    for bytes in [&bytes[..40], b"no journal\n"] {
        fs::write(dir.path().join(NAME), bytes).unwrap();
        let error = Journal::open(dir.path()).unwrap_err();
        assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
    }
}

#[test]
fn second_coordinator_is_refused_with_holder() {
    let dir = tempfile::tempdir().unwrap();
    let first = Journal::open(dir.path()).unwrap();
    let error = Journal::open(dir.path()).unwrap_err().to_string();
    let holder = format!("pid {} on {}", std::process::id(), hostinfo::host_name());
    assert!(error.contains(&holder), "{error}");
    drop(first);
    Journal::open(dir.path()).unwrap();
}

#[test]
fn journal_of_other_numbers_is_refused() {
    let (dir, bytes, _) = written();
    let mut journal = reopened(dir.path(), &bytes);
    let ours = Identity {
        workers: 5,
        ..identity()
    };
    let error = journal.begin(ours).unwrap_err().to_string();
    assert!(error.contains("1 servers, 2 workers"), "{error}");
    assert!(error.contains("1 servers, 5 workers"), "{error}");
}

/// The file does not grow without end, and what replaces it has the same image.
#[test]
fn grown_journal_is_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path()).unwrap();
    journal.begin(identity()).unwrap();
    let mut image = journal.take_image();
    let job = JobImage {
        failed: Some(Refusal::new(RefusalCode::Io, [0; 4])),
        ..JobImage::default()
    };
    let names: Vec<String> = (0..2_000).map(|n| format!("{n:0>500}")).collect();
    let mut written = 0;
    for _ in 0..4 {
        for names in names.chunks(500) {
            let entered = names
                .iter()
                .map(|name| Change::Job(name.clone(), Some(Box::new(job.clone()))));
            append(&mut journal, &mut image, entered.collect());
        }
        let gone = names.iter().map(|name| Change::Job(name.clone(), None));
        append(&mut journal, &mut image, gone.collect());
        written += 2 * names.len() as u64 * 500;
    }
    let size = fs::metadata(dir.path().join(NAME)).unwrap().len();
    assert!(size < written / 2, "{size} bytes of {written}");
    drop(journal);
    let journal = Journal::open(dir.path()).unwrap();
    assert_eq!(text(&journal.image), text(&image));
}
