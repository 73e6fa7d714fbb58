//! Checkpoints that hold what has changed since the one before.

use super::*;

/// A series of checkpoints of two servers, each but the first one extending the one before, and the model at each.
fn series(root: &Path) -> Vec<(PathBuf, Manifest, Model)> {
    let cluster = Cluster::new(&[2, 1]);
    cluster.fill(1);
    let disk = CutDisk::default();
    let mut all: Vec<(PathBuf, Manifest, Model)> = Vec::new();
    for number in 1..=4 {
        let dir = root.join(format!("checkpoint-{number:010}"));
        fs::create_dir(&dir).unwrap();
        let base = all.last();
        let base = base.map(|(from, manifest, _)| (number - 1, from.as_path(), manifest));
        let manifest = cluster.checkpoint(&disk, &dir, number, base).unwrap();
        all.push((dir, manifest, cluster.model()));
        cluster.change(number);
    }
    all
}

#[test]
fn each_of_a_series_is_loaded_on_any_number_of_servers() {
    let root = tempfile::tempdir().unwrap();
    let all = series(root.path());
    for pair in all.windows(2) {
        assert!(pair[0].2 != pair[1].2);
        let removed = pair[0].2.keys().filter(|key| !pair[1].2.contains_key(key));
        assert!(removed.count() > 5, "rows were removed");
        // A row of the parts before it is written again only if it has changed.
        let (old, new) = (&pair[0].1, &pair[1].1);
        assert_eq!(new.files.len(), old.files.len() + 2);
        assert!(new.rows() - old.rows() < all[0].1.rows() / 4);
    }
    for (dir, manifest, model) in &all {
        assert_eq!(&read_manifest(dir).unwrap(), manifest);
        for appliers in [&[1][..], &[1, 3, 1]] {
            let next = Cluster::new(appliers);
            next.load(dir).unwrap();
            assert!(next.model() == *model, "{} {appliers:?}", dir.display());
        }
    }
    // Each directory is whole by itself.
    for (dir, ..) in &all[..3] {
        fs::remove_dir_all(dir).unwrap();
    }
    let next = Cluster::new(&[1]);
    next.load(&all[3].0).unwrap();
    assert!(next.model() == all[3].2);
}

/// Removed rows that were created again, in the part that removes them or in a later one, are there.
#[test]
fn row_that_is_created_again_comes_back() {
    let cluster = Cluster::new(&[1]);
    cluster.fill(1);
    let root = tempfile::tempdir().unwrap();
    let dirs = [1, 2, 3].map(|n| root.path().join(n.to_string()));
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let disk = CutDisk::default();
    let first = cluster.checkpoint(&disk, &dirs[0], 1, None).unwrap();
    cluster.change(5);
    // All rows of before are there again.
    cluster.fill(1);
    let base = Some((1, dirs[0].as_path(), &first));
    let second = cluster.checkpoint(&disk, &dirs[1], 2, base).unwrap();
    let full = cluster.model();
    cluster.change(6);
    let base = Some((2, dirs[1].as_path(), &second));
    cluster.checkpoint(&disk, &dirs[2], 3, base).unwrap();
    for (dir, model) in [(&dirs[1], full), (&dirs[2], cluster.model())] {
        let next = Cluster::new(&[2]);
        next.load(dir).unwrap();
        assert!(next.model() == model, "{}", dir.display());
    }
}

/// A part that is missing or cut leaves out all checkpoints that extend it, and no other.
#[test]
fn checkpoint_without_a_part_that_it_extends_is_left_out() {
    let root = tempfile::tempdir().unwrap();
    let all = series(root.path());
    let job = root.path().to_str().unwrap();
    let found = |before| series::find(job, before).unwrap();
    assert_eq!(found(u64::MAX).newest.unwrap().number, 4);
    let last = &all[3].1.files[4].file;
    fs::remove_file(all[3].0.join(last)).unwrap();
    let left_out = found(u64::MAX);
    assert_eq!(left_out.newest.unwrap().number, 3);
    assert!(left_out.skipped[0].contains(last), "{:?}", left_out.skipped);
    // The third one has names of its own for the parts of the first.
    let first = &all[0].1.files[0].file;
    fs::remove_file(all[0].0.join(first)).unwrap();
    assert_eq!(found(u64::MAX).newest.unwrap().number, 3);
    fs::remove_file(all[2].0.join(first)).unwrap();
    assert_eq!(found(u64::MAX).newest.unwrap().number, 2);
}

/// A damaged part is damaged in all checkpoints that have it: with two or more of them, one that has other parts stays.
#[test]
fn checkpoint_of_other_parts_stays() {
    let root = tempfile::tempdir().unwrap();
    let all = series(root.path());
    let cluster = Cluster::new(&[2, 1]);
    cluster.fill(3);
    let disk = CutDisk::default();
    let mut next: Vec<(PathBuf, Manifest)> = Vec::new();
    for number in 5..=7 {
        let dir = root.path().join(format!("checkpoint-{number:010}"));
        fs::create_dir(&dir).unwrap();
        let base = next.last();
        let base = base.map(|(from, manifest)| (number - 1, from.as_path(), manifest));
        let manifest = cluster.checkpoint(&disk, &dir, number, base).unwrap();
        next.push((dir, manifest));
    }
    let there = |number: u64| {
        let name = format!("checkpoint-{number:010}");
        root.path().join(name).exists()
    };
    series::prune(&mut OsDisk, &next[2].0, 2);
    let kept: Vec<u64> = (1..=7).filter(|number| there(*number)).collect();
    assert_eq!(kept, [4, 6, 7]);
    // The part with all rows that both 6 and 7 have.
    let shared = next[2].0.join(&next[2].1.files[0].file);
    fs::OpenOptions::new()
        .write(true)
        .open(shared)
        .unwrap()
        .set_len(100)
        .unwrap();
    let found = series::find(root.path().to_str().unwrap(), u64::MAX).unwrap();
    let newest = found.newest.unwrap();
    assert_eq!((newest.number, found.skipped.len()), (4, 2));
    let other = Cluster::new(&[1]);
    other.load(Path::new(&newest.dir)).unwrap();
    assert!(other.model() == all[3].2);
    // With one only that one stays, as asked for.
    series::prune(&mut OsDisk, Path::new(&newest.dir), 1);
    assert!(there(4));
}

/// A manifest in which parts do not follow each other is refused: its rows would be of other times.
#[test]
fn parts_in_another_order_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let (dir, manifest, _) = series(root.path()).pop().unwrap();
    let refused = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = manifest.clone();
        change(&mut manifest);
        let error = commit(&mut OsDisk, &dir, &manifest).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("extends"), "{text}");
    };
    refused(&|m| m.files.swap(0, 2));
    refused(&|m| m.files[2].extends = None);
    refused(&|m| m.files[6].extends = m.files[2].extends.clone());
    refused(&|m| drop(m.files.remove(2)));
    refused(&|m| m.files[3].server = 0);
    commit(&mut OsDisk, &dir, &manifest).unwrap();
}

/// A link that the file system refuses fails with its path, and names that are there already are kept.
#[test]
fn links_of_parts_are_made_once() {
    let root = tempfile::tempdir().unwrap();
    let all = series(root.path());
    let names = vec![all[0].1.files[0].file.clone()];
    let to = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        link_parts(&mut OsDisk, &all[0].0, to.path(), &names).unwrap();
    }
    let missing = root.path().join("missing");
    let error = link_parts(&mut OsDisk, &all[0].0, &missing, &names).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
}
