//! The description of a saved model: what it is, and the features that it was trained on.
//!
//! It is a row of a table of its own, saved with the weights.

use std::path::Path;

use tidewater_protocol::limits::CLOCK_DEADLINE;
use tidewater_protocol::table::PushOp;
use tidewater_protocol::wire::refusal::RefusalCode;

use super::all_gather::{ASIDE, meet};
use super::config::WEIGHTS;
use super::error::TrainError;
use tidewater::error::ClientError;
use tidewater::pull::PullOptions;
use tidewater::session::Client;
use tidewater::table::{Table, TableBuilder};

/// Name of the table: `i64`, one row.
pub const MODEL: &str = "tidewater-train/model";

/// Layout number of the row. A table that no run has written holds 0.
const LAYOUT: i64 = 1;
/// Kind of a logistic regression with weights `w` by feature key.
const LOGISTIC: i64 = 1;
const CELLS: usize = 4;
/// Name of a model that no call has loaded.
const PRESENT: &str = "the cluster";

/// Features that a model was trained on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Described {
    /// Largest feature key of the training set, plus 1.
    pub(crate) features: u64,
    /// Number of values of each record; 0 for sparse records.
    pub(crate) width: u64,
}

impl Described {
    /// Whether data with these values a record, or this largest key, fits. Sparse data may have features that
    /// no training record had; records of a fixed width may not.
    ///
    /// # Errors
    /// [`TrainError::Width`] with both widths.
    pub(crate) fn check(
        &self,
        data: &Path,
        width: Option<u64>,
        max_key: Option<u64>,
    ) -> Result<(), TrainError> {
        let features = max_key.map_or(0, |key| key.saturating_add(1));
        let (found, fits) = match width {
            Some(width) if self.width > 0 => (width, width == self.width),
            Some(width) => (width, width <= self.features),
            None => (features, self.width == 0 || features <= self.width),
        };
        if fits {
            return Ok(());
        }
        Err(TrainError::Width {
            path: data.to_owned(),
            found,
            model: match self.width {
                0 => self.features,
                width => width,
            },
        })
    }
}

/// The table of the description.
#[derive(Debug)]
pub(crate) struct DescriptionTable(Table<i64>);

impl DescriptionTable {
    /// Creates the table, or opens the loaded one.
    pub(crate) fn new(client: &mut Client) -> Result<Self, ClientError> {
        let spec = TableBuilder::rows::<i64>(MODEL, 1, CELLS as u32)
            .domain(ASIDE)
            .partitions(1);
        Ok(Self(client.create_table(spec.spec())?))
    }

    /// Writes the description of a model that was trained on these features, after what it was trained on
    /// before. One worker calls it.
    pub(crate) fn write(
        &self,
        client: &mut Client,
        trained: &Described,
        dir: &str,
    ) -> Result<(), TrainError> {
        // A new model was trained on nothing before.
        let before = self.read(client, dir)?.unwrap_or_default();
        let cells = [
            LAYOUT,
            LOGISTIC,
            before.features.max(trained.features).cast_signed(),
            before.width.max(trained.width).cast_signed(),
        ];
        let ticket = client.push_rows(&self.0, &[0], &cells, PushOp::Assign)?;
        Ok(client.wait_applied(&ticket)?)
    }

    /// Reads the description; `None` for a model without one.
    pub(crate) fn read(
        &self,
        client: &mut Client,
        dir: &str,
    ) -> Result<Option<Described>, TrainError> {
        let mut cells = [0i64; CELLS];
        client.pull_rows(&self.0, &[0], &mut cells, PullOptions::default())?;
        decode(cells).map_err(|what| other(dir, what))
    }
}

fn decode([layout, kind, features, width]: [i64; CELLS]) -> Result<Option<Described>, String> {
    match (layout, kind) {
        (0, _) => Ok(None),
        (LAYOUT, LOGISTIC) => Ok(Some(Described {
            features: features.cast_unsigned(),
            width: width.cast_unsigned(),
        })),
        (LAYOUT, kind) => Err(format!(
            "it is of kind {kind}, a logistic regression of {LOGISTIC}"
        )),
        (layout, _) => Err(format!(
            "its description has layout {layout}, this program reads {LAYOUT}"
        )),
    }
}

fn other(dir: &str, what: String) -> TrainError {
    let dir = dir.to_owned();
    TrainError::OtherModel { dir, what }
}

/// Opens the weights of a model of this program.
///
/// # Errors
/// [`TrainError::OtherModel`] for a model without them, or with a table of that name and another definition.
pub(crate) fn open_weights(client: &mut Client, dir: &str) -> Result<Table<f32>, TrainError> {
    let table = match client.open_table::<f32>(WEIGHTS) {
        Ok(table) => table,
        Err(ClientError::Refused(why)) if why.code == RefusalCode::UnknownTable => {
            return Err(other(dir, format!("it has no table \"{WEIGHTS}\"")));
        }
        Err(ClientError::Argument { what, .. }) => {
            return Err(other(dir, format!("table \"{WEIGHTS}\": {what}")));
        }
        Err(e) => return Err(e.into()),
    };
    let like = TableBuilder::sparse::<f32>(WEIGHTS, 1);
    let fits = client.spec(&table).is_some_and(|spec| {
        let want = like.spec();
        spec.shape == want.shape
    });
    if fits {
        return Ok(table);
    }
    Err(other(
        dir,
        format!("table \"{WEIGHTS}\" does not hold one weight a feature key"),
    ))
}

/// Loads a model if `dir` names one, and opens its weights and its description. All workers call it and wait for
/// each other.
///
/// # Errors
/// [`TrainError::OtherModel`] for a model of another kind; the errors of a load.
pub(crate) fn load(
    client: &mut Client,
    dir: Option<&str>,
) -> Result<(Table<f32>, Described), TrainError> {
    if let Some(dir) = dir
        && client.rank().0 == 0
    {
        client.load(dir, CLOCK_DEADLINE)?;
    }
    meet(client)?;
    let name = dir.unwrap_or(PRESENT);
    let weights = open_weights(client, name)?;
    let table = match client.open_table::<i64>(MODEL) {
        Ok(table) => DescriptionTable(table),
        Err(ClientError::Refused(why)) if why.code == RefusalCode::UnknownTable => {
            let what = format!("it has no table \"{MODEL}\": another program saved it");
            return Err(other(name, what));
        }
        Err(e) => return Err(e.into()),
    };
    let described = table.read(client, name)?;
    let described = described.ok_or_else(|| other(name, "it is not trained yet".to_owned()))?;
    Ok((weights, described))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_of_other_models_are_refused() {
        let ours = Described {
            features: 123,
            width: 4,
        };
        assert_eq!(decode([LAYOUT, LOGISTIC, 123, 4]), Ok(Some(ours)));
        assert_eq!(decode([0; CELLS]), Ok(None));
        for (cells, says) in [([2, 1, 0, 0], "layout 2"), ([1, 7, 0, 0], "of kind 7")] {
            let error = decode(cells).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn widths_of_data_and_model_are_compared() {
        let path = Path::new("data");
        let sparse = Described {
            features: 123,
            width: 0,
        };
        let dense = Described {
            features: 9,
            width: 10,
        };
        for (model, width, max_key, fits) in [
            (&sparse, None, Some(500), true),
            (&sparse, Some(123), Some(122), true),
            (&sparse, Some(124), Some(3), false),
            (&dense, Some(10), Some(9), true),
            (&dense, Some(9), Some(8), false),
            (&dense, Some(11), Some(3), false),
            (&dense, None, Some(9), true),
            (&dense, None, Some(10), false),
            (&dense, None, None, true),
        ] {
            let checked = model.check(path, width, max_key);
            assert_eq!(checked.is_ok(), fits, "{model:?} {width:?} {max_key:?}");
        }
        let error = dense.check(path, Some(11), None).unwrap_err().to_string();
        assert!(error.contains("11") && error.contains("10"), "{error}");
    }
}
