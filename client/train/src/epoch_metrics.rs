//! Metrics of a program's own, by epoch: each worker adds values, and all workers get those of all.

use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use tidewater::{Client, ClientError};

/// Reasons for which a metric cannot be defined, added to or merged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EpochMetricsError {
    /// The name is empty or taken.
    #[error(
        "a metric cannot be named {name:?}: the name is empty or taken; give each metric its own"
    )]
    Name {
        /// Name that was refused.
        name: String,
    },
    /// No metric has this name.
    #[error("no metric is named {name:?}; define it first, at every worker")]
    Unknown {
        /// Name that was looked for.
        name: String,
    },
    /// A value or a weight is not finite, or a weight is negative.
    #[error(
        "metric {name:?} cannot take value {value} with weight {weight}: both must be finite and the weight at \
         least 0; a loss that is not finite means that training diverged"
    )]
    Value {
        /// Name of the metric.
        name: String,
        /// Value that was refused.
        value: f64,
        /// Its weight; 1 for metrics without weights.
        weight: f64,
    },
    /// The call does not fit the kind of the metric: a weight for a metric without weights, a single value for a
    /// metric of the program's own merge, or parts of another length.
    #[error("metric {name:?} takes {takes}")]
    Kind {
        /// Name of the metric.
        name: String,
        /// What the metric takes instead.
        takes: String,
    },
    /// Two workers have defined different metrics.
    #[error(
        "worker {rank} has other metrics than this one; define the same ones in the same order at every worker"
    )]
    Definitions {
        /// Rank of the other worker.
        rank: u32,
    },
    /// The collective call failed. The values are kept, so that the call can be repeated.
    #[error("metrics of all workers: {0}")]
    Client(#[from] ClientError),
}

/// Merges the second state into the first; both have the length of the metric's initial state.
pub type MergeState = fn(&mut [f64], &[f64]);
/// The metric's value from its merged state; `None` if there is none, for example with no values.
pub type CalculateValue = fn(&[f64]) -> Option<f64>;

/// Metrics of a program, which every worker defines alike. Values are added by name, and
/// [`EpochMetrics::merge`] gives every worker those of all, folded in the order of ranks: the same bits at each.
///
/// # Examples
/// ```
/// use tidewater::{JoinOptions, SyncMode};
/// use tidewater_train::EpochMetrics;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// let mut client = job.client(SyncMode::Asp)?;
/// let mut metrics = EpochMetrics::new();
/// metrics.define_mean("loss")?;
/// metrics.define_sum("records")?;
/// metrics.add_weighted("loss", 0.5, 30.0)?;
/// metrics.add_weighted("loss", 0.1, 10.0)?;
/// metrics.add("records", 40.0)?;
/// let merged = metrics.merge(&mut client, 1)?;
/// assert_eq!(merged.value("loss"), Some(0.4));
/// assert_eq!(
///     merged.to_json(),
///     r#"{"event":"metrics","epoch":1,"workers":1,"metrics":{"loss":0.4,"records":40.0}}"#
/// );
/// # client.finish()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct EpochMetrics {
    metrics: Vec<Metric>,
}

#[derive(Debug)]
struct Metric {
    name: String,
    kind: Kind,
    initial: Vec<f64>,
    state: Vec<f64>,
    merge: MergeState,
    calculate: CalculateValue,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sum,
    Mean,
    Min,
    Max,
    Custom,
}

/// Metrics of all workers in an epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct MergedMetrics {
    /// The epoch, as the caller of [`EpochMetrics::merge`] counts it.
    pub epoch: u64,
    /// Number of workers that took part.
    pub workers: usize,
    /// Names and values in the order of their definition; `None` where no worker added anything.
    pub values: Vec<MetricValue>,
}

/// A metric's name and its value over all workers.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricValue {
    /// Name of the metric.
    pub name: String,
    /// Its value; `None` if no worker added anything.
    pub value: Option<f64>,
}

impl EpochMetrics {
    /// A set without metrics, to which definitions are added.
    pub fn new() -> Self {
        Self::default()
    }

    /// Defines a metric that is the sum of all values; 0 without values.
    ///
    /// # Errors
    /// [`EpochMetricsError::Name`].
    pub fn define_sum(&mut self, name: &str) -> Result<(), EpochMetricsError> {
        self.insert(name, Kind::Sum, vec![0.0], add_all, |state| Some(state[0]))
    }

    /// Defines a metric that is the mean of all values by their weights.
    ///
    /// # Errors
    /// [`EpochMetricsError::Name`].
    pub fn define_mean(&mut self, name: &str) -> Result<(), EpochMetricsError> {
        let mean: CalculateValue = |state| (state[1] > 0.0).then(|| state[0] / state[1]);
        self.insert(name, Kind::Mean, vec![0.0, 0.0], add_all, mean)
    }

    /// Defines a metric that is the least value.
    ///
    /// # Errors
    /// [`EpochMetricsError::Name`].
    pub fn define_min(&mut self, name: &str) -> Result<(), EpochMetricsError> {
        let merge: MergeState = |into, other| into[0] = into[0].min(other[0]);
        self.insert(name, Kind::Min, vec![f64::INFINITY], merge, finite)
    }

    /// Defines a metric that is the greatest value.
    ///
    /// # Errors
    /// [`EpochMetricsError::Name`].
    pub fn define_max(&mut self, name: &str) -> Result<(), EpochMetricsError> {
        let merge: MergeState = |into, other| into[0] = into[0].max(other[0]);
        self.insert(name, Kind::Max, vec![f64::NEG_INFINITY], merge, finite)
    }

    /// Defines a metric of a few numbers, its state, which the program merges and turns into a value: a ratio, an F1
    /// score, a histogram. States are added by [`EpochMetrics::add_state`]. `initial` must be neutral, as 0 is for a sum
    /// and 1 for a product: it is merged once for each worker. Merging must not depend on the order within a worker
    /// if the value is not to.
    ///
    /// # Errors
    /// [`EpochMetricsError::Name`]; [`EpochMetricsError::Kind`] for an initial state without numbers.
    pub fn define(
        &mut self,
        name: &str,
        initial: &[f64],
        merge: MergeState,
        calculate: CalculateValue,
    ) -> Result<(), EpochMetricsError> {
        if initial.is_empty() {
            return Err(kind_error(name, "an initial state of at least one number"));
        }
        self.insert(name, Kind::Custom, initial.to_vec(), merge, calculate)
    }

    fn insert(
        &mut self,
        name: &str,
        kind: Kind,
        initial: Vec<f64>,
        merge: MergeState,
        calculate: CalculateValue,
    ) -> Result<(), EpochMetricsError> {
        if name.is_empty() || self.metrics.iter().any(|metric| metric.name == name) {
            let name = name.to_owned();
            return Err(EpochMetricsError::Name { name });
        }
        self.metrics.push(Metric {
            name: name.to_owned(),
            kind,
            state: initial.clone(),
            initial,
            merge,
            calculate,
        });
        Ok(())
    }

    /// Adds a value to a sum, a minimum, a maximum, or with weight 1 to a mean.
    ///
    /// # Errors
    /// [`EpochMetricsError::Unknown`], [`EpochMetricsError::Value`]; [`EpochMetricsError::Kind`] for a metric of the
    /// program's own merge. Nothing has changed then.
    pub fn add(&mut self, name: &str, value: f64) -> Result<(), EpochMetricsError> {
        let metric = self.metric(name)?;
        match metric.kind {
            Kind::Mean => metric.merge_part(&[value, 1.0], value, 1.0),
            Kind::Custom => Err(kind_error(name, "states: call `add_state`")),
            Kind::Sum | Kind::Min | Kind::Max => metric.merge_part(&[value], value, 1.0),
        }
    }

    /// Adds a value to a mean with its weight, for example the mean of a batch with its number of rows.
    ///
    /// # Errors
    /// As [`EpochMetrics::add`]; [`EpochMetricsError::Kind`] for a metric that is no mean.
    pub fn add_weighted(
        &mut self,
        name: &str,
        value: f64,
        weight: f64,
    ) -> Result<(), EpochMetricsError> {
        let metric = self.metric(name)?;
        match metric.kind {
            Kind::Mean => metric.merge_part(&[value * weight, weight], value, weight),
            _ => Err(kind_error(name, "no weights: only a mean does")),
        }
    }

    /// Merges a state into a metric of the program's own merge.
    ///
    /// # Errors
    /// As [`EpochMetrics::add`]; [`EpochMetricsError::Kind`] for another metric or a state of another length.
    pub fn add_state(&mut self, name: &str, state: &[f64]) -> Result<(), EpochMetricsError> {
        let metric = self.metric(name)?;
        let length = metric.initial.len();
        match metric.kind {
            Kind::Custom if state.len() == length => metric.merge_part(state, 0.0, 1.0),
            Kind::Custom => Err(kind_error(
                name,
                &format!("states of {length} numbers, not {}", state.len()),
            )),
            _ => Err(kind_error(name, "values: call `add`")),
        }
    }

    /// Gives every worker the metrics of all, and begins the next epoch with none. All workers call it, as
    /// [`Client::all_gather`]; one of them, usually rank 0, prints [`MergedMetrics::to_json`] or appends it to a file.
    /// Cost: one collective call of 8 bytes a number of the states.
    ///
    /// # Errors
    /// [`EpochMetricsError::Definitions`], at every worker; [`EpochMetricsError::Client`], also where definitions have
    /// different lengths. The values are kept then; repeat the call before anything is added.
    pub fn merge(
        &mut self,
        client: &mut Client,
        epoch: u64,
    ) -> Result<MergedMetrics, EpochMetricsError> {
        let row = self.row();
        let all = client.all_gather(&row)?;
        let ranks = client.collective_ranks();
        let mut states: Vec<Vec<f64>> = self
            .metrics
            .iter()
            .map(|metric| metric.initial.clone())
            .collect();
        for (theirs, rank) in all.chunks_exact(row.len()).zip(&ranks) {
            if theirs[0] != row[0] {
                return Err(EpochMetricsError::Definitions { rank: rank.0 });
            }
            let mut numbers = theirs[1..]
                .iter()
                .map(|bits| f64::from_bits(bits.cast_unsigned()));
            for (metric, state) in self.metrics.iter().zip(&mut states) {
                let part: Vec<f64> = numbers.by_ref().take(state.len()).collect();
                (metric.merge)(state, &part);
            }
        }
        let values = self.metrics.iter_mut().zip(&states).map(|(metric, state)| {
            metric.state.clone_from(&metric.initial);
            MetricValue {
                name: metric.name.clone(),
                value: (metric.calculate)(state),
            }
        });
        Ok(MergedMetrics {
            epoch,
            workers: ranks.len(),
            values: values.collect(),
        })
    }

    /// The definitions' hash, then all states as bits.
    fn row(&self) -> Vec<i64> {
        let states = self.metrics.iter().flat_map(|metric| &metric.state);
        let bits = states.map(|number| number.to_bits().cast_signed());
        std::iter::once(self.definitions().cast_signed())
            .chain(bits)
            .collect()
    }

    /// Hash of names, kinds and lengths: FNV-1a of 64 bits, which is the same on every host.
    fn definitions(&self) -> u64 {
        let texts = self.metrics.iter().map(|metric| {
            format!(
                "{}\0{:?}\0{}\0",
                metric.name,
                metric.kind,
                metric.initial.len()
            )
        });
        let bytes = texts.flat_map(String::into_bytes);
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    fn metric(&mut self, name: &str) -> Result<&mut Metric, EpochMetricsError> {
        let found = self.metrics.iter_mut().find(|metric| metric.name == name);
        found.ok_or_else(|| EpochMetricsError::Unknown {
            name: name.to_owned(),
        })
    }
}

impl Metric {
    /// Merges one part; `value` and `weight` are what the caller gave, for the error.
    fn merge_part(
        &mut self,
        part: &[f64],
        value: f64,
        weight: f64,
    ) -> Result<(), EpochMetricsError> {
        let sound = part.iter().all(|number| number.is_finite()) && weight >= 0.0;
        if !sound {
            let name = self.name.clone();
            let value = part
                .iter()
                .copied()
                .find(|number| !number.is_finite())
                .unwrap_or(value);
            return Err(EpochMetricsError::Value {
                name,
                value,
                weight,
            });
        }
        let mut merged = self.state.clone();
        (self.merge)(&mut merged, part);
        // A sum over two large numbers is none.
        let is_sound = |(new, old): (&f64, &f64)| new.is_finite() || new == old;
        if !merged.iter().zip(&self.state).all(is_sound) {
            let name = self.name.clone();
            return Err(EpochMetricsError::Value {
                name,
                value,
                weight,
            });
        }
        self.state = merged;
        Ok(())
    }
}

impl MergedMetrics {
    /// Value of a metric; `None` if no worker added anything, or no metric has this name.
    pub fn value(&self, name: &str) -> Option<f64> {
        let found = self.values.iter().find(|metric| metric.name == name);
        found.and_then(|metric| metric.value)
    }

    /// One line of JSON without its end: `event` (always "metrics"), `epoch`, `workers`, and `metrics` with a number
    /// or `null` for each name.
    ///
    /// # Panics
    /// Never: numbers and strings always have a JSON form.
    pub fn to_json(&self) -> String {
        let line = Line {
            event: "metrics",
            epoch: self.epoch,
            workers: self.workers,
            metrics: Values(&self.values),
        };
        serde_json::to_string(&line).expect("a struct of numbers and strings has a JSON form")
    }
}

#[derive(Serialize)]
struct Line<'a> {
    event: &'static str,
    epoch: u64,
    workers: usize,
    metrics: Values<'a>,
}

struct Values<'a>(&'a [MetricValue]);

impl Serialize for Values<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for metric in self.0 {
            map.serialize_entry(&metric.name, &metric.value)?;
        }
        map.end()
    }
}

fn add_all(into: &mut [f64], other: &[f64]) {
    for (sum, number) in into.iter_mut().zip(other) {
        *sum += number;
    }
}

/// The first number of a state, unless it is the infinity that a minimum or a maximum begins with.
fn finite(state: &[f64]) -> Option<f64> {
    state.first().copied().filter(|number| number.is_finite())
}

fn kind_error(name: &str, takes: &str) -> EpochMetricsError {
    EpochMetricsError::Kind {
        name: name.to_owned(),
        takes: takes.to_owned(),
    }
}
