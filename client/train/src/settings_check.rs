//! Checks that all workers of a run have the same settings.
//!
//! Workers meet at barriers and exchange rows by turns. A worker with more turns, or fewer, would
//! misread the others' rows, and wait for a turn that never comes. The first exchange of the workers is
//! therefore that of their settings.

use tidewater_protocol::layout::hash::mix64;

use super::all_gather::{AllGather, Row, WIDTH};
use super::config::Config;
use super::error::TrainError;
use tidewater::session::Client;

/// Form in which an error names a setting.
#[derive(Debug, Clone, Copy)]
enum As {
    /// Whether it was given.
    Given,
    /// The value as a number.
    Number,
    /// Only that it differs: the value is too long.
    Other,
}

/// All settings that change what a worker does with the others, by the flag that sets them. (Rates and
/// rules are in the model's table, which is refused when it differs.)
fn settings(config: &Config) -> [(&'static str, As, u64); 10] {
    [
        ("--sync", As::Other, hash(&config.sync)),
        ("--epochs", As::Number, config.epochs),
        ("--test", As::Given, config.test.is_some().into()),
        ("--evaluate-every", As::Other, hash(&config.evaluate)),
        ("--load", As::Given, config.load.is_some().into()),
        ("--save", As::Given, config.save.is_some().into()),
        ("--schedule", As::Other, hash(&config.decay)),
        ("--batch", As::Number, config.batch_rows.get() as u64),
        ("--seed", As::Number, config.seed),
        (
            "--format, --schema, --positive or --bad-records",
            As::Other,
            hash(&config.read),
        ),
    ]
}

/// Hash of a value's debug text. It is the same in all processes of one version, and others cannot
/// join.
fn hash(value: &impl std::fmt::Debug) -> u64 {
    hash_bytes(format!("{value:?}").as_bytes())
}

/// Hash of bytes, without a key.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(1, |sum, &byte| mix64(sum ^ u64::from(byte)))
}

/// Exchanges the settings and compares them. Cost: an exchange.
///
/// # Errors
/// [`TrainError::Differs`] at all workers, if two have different settings.
pub(crate) fn check(
    client: &mut Client,
    all_gather: &AllGather,
    config: &Config,
) -> Result<(), TrainError> {
    let settings = settings(config);
    let mut row: Row = [0; WIDTH];
    for (cell, (_, _, value)) in row.iter_mut().zip(settings) {
        *cell = value.cast_signed();
    }
    compare(
        settings.map(|(flag, kind, _)| (flag, kind)),
        &all_gather.exchange(client, &row)?,
    )
}

/// Fails with the first worker that differs from worker 0.
fn compare<const N: usize>(flags: [(&'static str, As); N], all: &[Row]) -> Result<(), TrainError> {
    let Some(first) = all.first() else {
        return Ok(());
    };
    for (rank, row) in all.iter().enumerate() {
        for (cell, (flag, kind)) in flags.into_iter().enumerate() {
            if row[cell] != first[cell] {
                return Err(TrainError::Differs {
                    flag,
                    rank: rank as u32,
                    given: describe(kind, first[cell], "one"),
                    other: describe(kind, row[cell], "another one"),
                });
            }
        }
    }
    Ok(())
}

fn describe(kind: As, value: i64, otherwise: &str) -> String {
    match (kind, value) {
        (As::Given, 0) => "none".into(),
        (As::Given, _) => "one".into(),
        (As::Number, number) => number.cast_unsigned().to_string(),
        (As::Other, _) => otherwise.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decay::Decay;
    use crate::exit;
    use tidewater::clock::SyncMode;

    /// A setting that differs at one worker is found and named by its flag, with both ranks.
    #[test]
    fn different_setting_names_both_ranks() {
        let base = Config::new("a9a");
        let with = |change: fn(&mut Config)| {
            let mut config = base.clone();
            change(&mut config);
            config
        };
        let row = |config: &Config| {
            let mut row: Row = [0; WIDTH];
            for (cell, (_, _, value)) in row.iter_mut().zip(settings(config)) {
                *cell = value.cast_signed();
            }
            row
        };
        let flags = settings(&base).map(|(flag, kind, _)| (flag, kind));
        let others = [
            with(|c| c.sync = SyncMode::Ssp(2)),
            with(|c| c.epochs += 1),
            with(|c| c.test = Some("t".into())),
            with(|c| c.evaluate = "1epoch".parse().ok()),
            with(|c| c.load = Some("m".into())),
            with(|c| c.save = Some("m".into())),
            with(|c| c.decay = Decay::InverseSqrt { epochs: 1 }),
            with(|c| c.batch_rows = c.batch_rows.saturating_add(1)),
            with(|c| c.seed = u64::MAX),
            with(|c| c.read.format = Some(crate::data::Format::Libsvm)),
        ];
        for (other, (flag, _)) in others.iter().zip(flags) {
            let rows = [row(&base), row(&base), row(other)];
            let error = compare(flags, &rows).unwrap_err();
            assert_eq!(error.exit_code(), exit::USAGE);
            let text = error.to_string();
            for part in [flag, "worker 0", "worker 2"] {
                assert!(text.contains(part), "{flag}: {text}");
            }
        }
        let (one, two) = (row(&base), row(&with(|c| c.test = Some("t".into()))));
        let text = compare(flags, &[two, one]).unwrap_err().to_string();
        assert!(
            text.contains("worker 0 was given one and worker 1 none"),
            "{text}"
        );
        compare(flags, &[one, one]).unwrap();
    }
}
