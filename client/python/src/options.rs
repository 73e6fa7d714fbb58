//! Parses Python arguments into the client's options.

use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};
use tidewater::{
    Missing, PullMode, PullOptions, PushEncoding, PushOptions, ReduceOp, Reduction, SyncMode,
};
use tidewater_launch::{FabricSettings, RdmaDevice, TransportChoice, set_fabric};
use tidewater_protocol::ids::DomainId;
use tidewater_protocol::limits::DOMAINS_MAX;
use tidewater_protocol::table::{Apply, DType, Durability, Init, Optimizer, PushOp, Reduce};

use crate::arrays::numpy_name;

/// Looks a word up among the known ones.
fn word<T: Copy>(what: &str, given: &str, known: &[(&str, T)]) -> PyResult<T> {
    let found = known.iter().find(|(name, _)| *name == given);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<String> = known.iter().map(|(name, _)| format!("'{name}'")).collect();
        let names = names.join(", ");
        PyValueError::new_err(format!("{what} is '{given}'; it is one of {names}"))
    })
}

pub(crate) fn op(given: &str) -> PyResult<PushOp> {
    let known = [
        ("sum", PushOp::Sum),
        ("assign", PushOp::Assign),
        ("gradient", PushOp::Gradient),
        ("min", PushOp::Min),
        ("max", PushOp::Max),
    ];
    word("op", given, &known)
}

pub(crate) fn reduction(given: &str) -> PyResult<Reduction> {
    let known = [
        ("sum", Reduction::Sum),
        ("min", Reduction::Min),
        ("max", Reduction::Max),
        ("and", Reduction::And),
    ];
    word("reduction", given, &known)
}

pub(crate) fn reduce_op(given: &str) -> PyResult<ReduceOp> {
    let known = [
        ("sum", ReduceOp::Sum),
        ("min", ReduceOp::Min),
        ("max", ReduceOp::Max),
        ("product", ReduceOp::Product),
        ("bit_and", ReduceOp::BitAnd),
        ("bit_or", ReduceOp::BitOr),
        ("bit_xor", ReduceOp::BitXor),
    ];
    word("op", given, &known)
}

pub(crate) fn effect(given: &str) -> PyResult<Apply> {
    let known = [
        ("immediate", Apply::Immediate),
        ("clock_sum", Apply::AtTick(Reduce::Sum)),
        ("clock_mean", Apply::AtTick(Reduce::Mean)),
    ];
    word("effect", given, &known)
}

pub(crate) fn durability(given: &str) -> PyResult<Durability> {
    let known = [("none", Durability::None), ("warm", Durability::Warm)];
    word("durability", given, &known)
}

pub(crate) fn sync(given: &str) -> PyResult<SyncMode> {
    given.parse().map_err(PyValueError::new_err)
}

pub(crate) fn transport(given: &str) -> PyResult<TransportChoice> {
    let wrong = |e| PyValueError::new_err(format!("transport '{given}': {e}"));
    given.parse().map_err(wrong)
}

pub(crate) fn rdma_device(given: &str) -> PyResult<RdmaDevice> {
    let wrong = |e| PyValueError::new_err(format!("rdma_device '{given}': {e}"));
    given.parse().map_err(wrong)
}

/// Settings of queue pairs from the keywords `rdma_NAME`. Values are numbers, texts as of the flags, or for
/// `rdma_ece` a bool; `None` is unset.
pub(crate) fn fabric(given: Option<&Bound<'_, PyDict>>) -> PyResult<FabricSettings> {
    let mut settings = FabricSettings::UNSET;
    for (keyword, value) in given.into_iter().flatten() {
        let keyword: String = keyword.extract()?;
        let Some(name) = keyword.strip_prefix("rdma_") else {
            let what = format!("got an unexpected keyword argument '{keyword}'");
            return Err(PyTypeError::new_err(what));
        };
        if value.is_none() {
            continue;
        }
        let text = match value.cast::<PyBool>() {
            Ok(on) if on.is_true() => "on".to_owned(),
            Ok(_) => "off".to_owned(),
            Err(_) => value.str()?.to_string(),
        };
        set_fabric(&mut settings, name, &text)
            .map_err(|e| PyValueError::new_err(format!("{keyword}: {e}")))?;
    }
    Ok(settings)
}

pub(crate) fn domain(given: i64) -> PyResult<DomainId> {
    let known = u8::try_from(given).ok();
    let known = known.filter(|&domain| usize::from(domain) < DOMAINS_MAX);
    known.map(DomainId).ok_or_else(|| {
        let most = DOMAINS_MAX - 1;
        PyValueError::new_err(format!("domain is {given}; there are 0 to {most}"))
    })
}

/// Index of an element in a range table.
pub(crate) fn first(given: i64) -> PyResult<u64> {
    let wrong = |_| PyValueError::new_err(format!("first is {given}; elements count from 0"));
    u64::try_from(given).map_err(wrong)
}

/// Converts seconds; `None` is a default.
pub(crate) fn seconds(what: &str, given: Option<f64>) -> PyResult<Option<Duration>> {
    const YEAR: f64 = 366.0 * 86_400.0;
    match given {
        None => Ok(None),
        Some(s) if (0.0..=YEAR).contains(&s) => Ok(Some(Duration::from_secs_f64(s))),
        Some(s) => Err(PyValueError::new_err(format!(
            "{what} is {s} s; it is 0 or more, up to a year"
        ))),
    }
}

pub(crate) fn pull(
    mode: &str,
    missing: &str,
    timeout: Option<f64>,
    usual: Duration,
) -> PyResult<PullOptions> {
    let modes = [
        ("consistent", PullMode::Consistent),
        ("hogwild", PullMode::Hogwild),
        ("snapshot", PullMode::Snapshot),
        ("gather", PullMode::Gather),
    ];
    let misses = [("create", Missing::Create), ("initial", Missing::Initial)];
    let options = PullOptions::default()
        .mode(word("mode", mode, &modes)?)
        .missing(word("missing", missing, &misses)?);
    let timeout = seconds("timeout", timeout)?.unwrap_or(usual);
    Ok(PullOptions { timeout, ..options })
}

pub(crate) fn push(weight: f64, encoding: &str, block: u32) -> PyResult<PushOptions> {
    let encodings = [
        ("exact", PushEncoding::Exact),
        ("bf16", PushEncoding::Bf16),
        ("f16", PushEncoding::F16),
        ("int8", PushEncoding::Int8 { block }),
    ];
    let encoding = word("encoding", encoding, &encodings)?;
    Ok(PushOptions::default().weight(weight).encoding(encoding))
}

/// Converts anything that numpy accepts as a type: `numpy.float32`, `'f4'`, a dtype.
pub(crate) fn dtype(given: &Bound<'_, PyAny>) -> PyResult<DType> {
    if given.is_none() {
        // numpy would take it for float64.
        return Err(PyTypeError::new_err("dtype is None"));
    }
    let numpy = given.py().import("numpy")?;
    let name: String = numpy
        .call_method1("dtype", (given,))?
        .getattr("name")?
        .extract()?;
    let known = [DType::F32, DType::F64, DType::I32, DType::I64];
    let known = known.map(|dtype| (numpy_name(dtype), dtype));
    word("dtype", &name, &known)
}

/// A name and its numbers: `"adam"` alone is not enough, `("adam", 1e-3, 0.9, 0.999, 1e-8)` is.
struct Call {
    name: String,
    numbers: Vec<f64>,
}

impl Call {
    fn new(what: &str, given: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(name) = given.extract::<String>() {
            let numbers = Vec::new();
            return Ok(Self { name, numbers });
        }
        let wrong =
            || PyTypeError::new_err(format!("{what} is a name, or a tuple of name and numbers"));
        let tuple = given.cast::<PyTuple>().map_err(|_| wrong())?;
        let mut parts = tuple.iter();
        let name = parts.next().ok_or_else(wrong)?.extract()?;
        let numbers = parts.map(|n| n.extract()).collect::<PyResult<_>>()?;
        Ok(Self { name, numbers })
    }
}

pub(crate) fn optimizer(given: Option<&Bound<'_, PyAny>>, dtype: DType) -> PyResult<Optimizer> {
    let Some(given) = given else {
        return Ok(if dtype.is_float() {
            Optimizer::Sgd { lr: 0.01 }
        } else {
            Optimizer::None
        });
    };
    let call = Call::new("optimizer", given)?;
    let momentum = |lr, mu, nesterov| Optimizer::Momentum { lr, mu, nesterov };
    Ok(match (call.name.as_str(), &call.numbers[..]) {
        ("none", []) => Optimizer::None,
        ("sgd", &[lr]) => Optimizer::Sgd { lr },
        ("momentum", &[lr, mu]) => momentum(lr, mu, false),
        ("nesterov", &[lr, mu]) => momentum(lr, mu, true),
        ("adagrad", &[lr, eps]) => Optimizer::AdaGrad { lr, eps },
        ("adam", &[lr, beta1, beta2, eps]) => Optimizer::Adam {
            lr,
            beta1,
            beta2,
            eps,
        },
        ("ftrl", &[alpha, beta, l1, l2]) => Optimizer::Ftrl {
            alpha,
            beta,
            l1,
            l2,
        },
        ("rmsprop", &[lr, decay, eps]) => Optimizer::RmsProp { lr, decay, eps },
        ("adamw", &[lr, beta1, beta2, eps, weight_decay]) => Optimizer::AdamW {
            lr,
            beta1,
            beta2,
            eps,
            weight_decay,
        },
        ("row_adagrad", &[lr, eps]) => Optimizer::RowAdaGrad { lr, eps },
        ("amsgrad", &[lr, beta1, beta2, eps]) => Optimizer::AmsGrad {
            lr,
            beta1,
            beta2,
            eps,
        },
        ("adadelta", &[lr, rho, eps]) => Optimizer::AdaDelta { lr, rho, eps },
        ("proximal_sgd", &[lr, l1]) => Optimizer::ProximalSgd { lr, l1 },
        ("proximal_adagrad", &[lr, eps, l1]) => Optimizer::ProximalAdaGrad { lr, eps, l1 },
        (name, numbers) => {
            return Err(PyValueError::new_err(format!(
                "optimizer '{name}' with {} numbers; there are 'none', ('sgd', lr), ('momentum', lr, \
                 mu), ('nesterov', lr, mu), ('adagrad', lr, eps), ('row_adagrad', lr, eps), ('rmsprop', \
                 lr, decay, eps), ('adam', lr, beta1, beta2, eps), ('amsgrad', lr, beta1, beta2, eps), \
                 ('adamw', lr, beta1, beta2, eps, weight_decay), ('adadelta', lr, rho, eps), \
                 ('proximal_sgd', lr, l1), ('proximal_adagrad', lr, eps, l1) and ('ftrl', alpha, beta, \
                 l1, l2)",
                numbers.len()
            )));
        }
    })
}

/// A number of inputs or outputs of a layer.
fn units(given: f64) -> PyResult<u32> {
    let is_count = given.fract() == 0.0 && (1.0..=f64::from(u32::MAX)).contains(&given);
    match is_count {
        true => Ok(given as u32),
        false => Err(PyValueError::new_err(format!(
            "{given} inputs or outputs of a layer; give a count from 1 on"
        ))),
    }
}

pub(crate) fn init(given: Option<&Bound<'_, PyAny>>) -> PyResult<Init> {
    let Some(given) = given else {
        return Ok(Init::Zeros);
    };
    let call = Call::new("init", given)?;
    Ok(match (call.name.as_str(), &call.numbers[..]) {
        ("zeros", []) => Init::Zeros,
        ("constant", &[value]) => Init::Constant(value),
        ("uniform", &[low, high]) => Init::Uniform { low, high },
        ("normal", &[mean, std]) => Init::Normal { mean, std },
        ("xavier_uniform", &[inputs, outputs]) => {
            Init::xavier_uniform(units(inputs)?, units(outputs)?)
        }
        ("xavier_normal", &[inputs, outputs]) => {
            Init::xavier_normal(units(inputs)?, units(outputs)?)
        }
        ("kaiming_uniform", &[inputs]) => Init::kaiming_uniform(units(inputs)?),
        ("kaiming_normal", &[inputs]) => Init::kaiming_normal(units(inputs)?),
        (name, numbers) => {
            return Err(PyValueError::new_err(format!(
                "init '{name}' with {} numbers; there are 'zeros', ('constant', value), ('uniform', low, \
                 high), ('normal', mean, std), ('xavier_uniform', inputs, outputs), ('xavier_normal', inputs, \
                 outputs), ('kaiming_uniform', inputs) and ('kaiming_normal', inputs)",
                numbers.len()
            )));
        }
    })
}
