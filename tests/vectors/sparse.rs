//! Sparse vectors against maps of the program.

use std::collections::BTreeMap;

use super::*;

/// Pairs with indices that repeat, from a seed.
fn pairs_of(seed: u64, count: usize, dim: u64) -> (Vec<u64>, Vec<f64>) {
    let values = numbers(seed)[..count].to_vec();
    let others = numbers(seed + 100);
    let indices = others[..count].iter();
    let indices = indices.map(|x| (x.abs() * 1e6) as u64 % 5000 * (dim / 5000));
    (indices.collect(), values)
}

fn map_of((indices, values): &(Vec<u64>, Vec<f64>)) -> BTreeMap<u64, f64> {
    let mut map = BTreeMap::new();
    for (index, value) in indices.iter().zip(values) {
        *map.entry(*index).or_insert(0.0) += value;
    }
    map
}

fn near(have: f64, want: f64) -> bool {
    (have - want).abs() <= 1e-9 * want.abs().max(1.0)
}

#[test]
fn sparse_vectors_match_local_maps() {
    let dim = 1 << 40;
    let mut bits = None;
    for servers in [1, 3] {
        let cluster = JoinOptions::embedded(servers, 1).join().unwrap();
        let cluster = cluster.into_job().unwrap();
        let client = cluster.client_of(0, SyncMode::Asp).unwrap();
        let space = VectorSpace::<f64>::new(client, "s", dim).unwrap();
        // More than a page of one, less of the other.
        let (a, b) = (pairs_of(1, 9000, dim), pairs_of(2, 700, dim));
        let (mut want, other) = (map_of(&a), map_of(&b));
        let mut x = space.sparse_from_pairs("x", &a.0, &a.1).unwrap();
        let y = space.sparse_from_pairs("y", &b.0, &b.1).unwrap();
        let same = |x: &SparseVector<f64>, want: &BTreeMap<u64, f64>| {
            let pairs = x.pairs().unwrap();
            assert_eq!(pairs.len(), want.len());
            for ((index, value), (at, want)) in pairs.iter().zip(want) {
                assert!(
                    index == at && near(*value, *want),
                    "{index}: {value}, not {want}"
                );
            }
        };
        same(&x, &want);
        let dot: f64 = other
            .iter()
            .filter_map(|(i, b)| Some(b * want.get(i)?))
            .sum();
        assert!(dot != 0.0, "some indices are equal");
        assert!(near(x.dot(&y).unwrap(), dot));
        let of_servers = x.dot(&y).unwrap().to_bits();
        assert_eq!(
            *bits.get_or_insert(of_servers),
            of_servers,
            "{servers} servers"
        );
        let squares: f64 = want.values().map(|x| x * x).sum();
        assert!(near(x.nrm2().unwrap(), squares.sqrt()));
        assert!(near(x.dot(&x).unwrap(), squares));
        let (sum, asum) = (want.values().sum(), want.values().map(|x| x.abs()).sum());
        assert!(near(x.sum().unwrap(), sum) && near(x.asum().unwrap(), asum));
        let amax = want.values().fold(0.0, |most: f64, x| most.max(x.abs()));
        assert!(near(x.amax().unwrap(), amax));

        x.axpy(-0.5, &y).unwrap();
        for (index, value) in &other {
            *want.entry(*index).or_insert(0.0) -= 0.5 * value;
        }
        same(&x, &want);
        x.scale_assign(3.0).unwrap();
        want.values_mut().for_each(|value| *value *= 3.0);
        same(&x, &want);

        // A written zero is stored and not counted; what is read is not stored.
        let first = *want.keys().next().unwrap();
        x.set_pairs(&[first], &[0.0]).unwrap();
        assert_eq!(x.nnz().unwrap(), want.len() as u64 - 1);
        assert_eq!(x.stored().unwrap(), want.len() as u64);
        let unknown = first + 1;
        assert_eq!(x.pull_at(&[unknown, first]).unwrap(), [0.0, 0.0]);
        assert_eq!(x.stored().unwrap(), want.len() as u64);
        let itself = space.sparse("y").unwrap();
        assert_eq!(itself.stored().unwrap(), other.len() as u64, "it is opened");
        let nothing = space.sparse("nothing").unwrap();
        assert_eq!(
            (nothing.nrm2().unwrap(), nothing.amax().unwrap()),
            (0.0, 0.0)
        );
        assert_eq!(x.dot(&nothing).unwrap(), 0.0);
        nothing.release().unwrap();
    }
}

/// A vector plus a multiple of itself, and the product with a dense vector.
#[test]
fn sparse_vectors_combine_with_themselves_and_dense_ones() {
    let cluster = JoinOptions::embedded(2, 1).join().unwrap();
    let cluster = cluster.into_job().unwrap();
    let space = space(&cluster, "s", DIM);
    let dense = space.from_slice(&numbers(3)).unwrap();
    let indices: Vec<u64> = (0..DIM as u64).step_by(7).collect();
    let values: Vec<f64> = indices.iter().map(|&index| index as f64).collect();
    let x = space.sparse_from_pairs("x", &indices, &values).unwrap();
    let mut same = space.sparse("x").unwrap();
    same.axpy(2.0, &x).unwrap();
    let pairs = x.pairs().unwrap();
    assert!(
        pairs
            .iter()
            .all(|&(index, value)| value == 3.0 * index as f64)
    );
    assert_eq!(pairs.len(), indices.len());
    let local = numbers(3);
    let want: f64 = pairs
        .iter()
        .map(|&(at, value)| value * local[at as usize])
        .sum();
    assert!(near(x.dot_dense(&dense).unwrap(), want));
}

#[test]
fn sparse_vectors_name_what_does_not_fit() {
    let cluster = JoinOptions::embedded(1, 1).join().unwrap();
    let cluster = cluster.into_job().unwrap();
    let space = space(&cluster, "s", 10);
    let mut x = space.sparse_from_pairs("x", &[9], &[1.0]).unwrap();
    let refused = |done: Result<(), ClientError>, words: &str| {
        let text = done.unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    };
    refused(
        x.add_pairs(&[3, 10], &[1.0; 2]),
        "index 10 of a vector of 10",
    );
    refused(x.set_pairs(&[3, 4], &[1.0]), "2 indices and 1 values");
    refused(x.pull_at(&[10]).map(drop), "index 10");
    let other = space.another("other", 10).unwrap();
    let y = other.sparse("x").unwrap();
    refused(x.axpy(1.0, &y), "space \"other\"");
    refused(x.dot(&y).map(drop), "space \"other\"");
    assert_eq!(x.pairs().unwrap(), [(9, 1.0)], "nothing was written");
}
