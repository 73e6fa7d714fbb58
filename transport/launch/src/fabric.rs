//! Settings of RDMA queue pairs by their names, from the environment or a program.

use std::str::FromStr;

use super::{EnvError, Vars, invalid};
use tidewater_topology::FabricSettings;

/// One setting of RDMA queue pairs: its name, its environment variable, and its parser.
struct Setting {
    /// The flag is `--rdma-NAME`, the keyword of Python `rdma_NAME`.
    name: &'static str,
    variable: &'static str,
    /// Parses the value. The error names the valid ones.
    set: fn(&mut FabricSettings, &str) -> Result<(), &'static str>,
}

const fn setting(
    name: &'static str,
    variable: &'static str,
    set: fn(&mut FabricSettings, &str) -> Result<(), &'static str>,
) -> Setting {
    Setting {
        name,
        variable,
        set,
    }
}

const SETTINGS: [Setting; 9] = [
    setting("timeout", "TIDEWATER_RDMA_TIMEOUT", |all, value| {
        parse(&mut all.timeout, value)
    }),
    setting("retries", "TIDEWATER_RDMA_RETRIES", |all, value| {
        parse(&mut all.retries, value)
    }),
    setting(
        "traffic-class",
        "TIDEWATER_RDMA_TRAFFIC_CLASS",
        |all, value| parse(&mut all.traffic_class, value),
    ),
    setting(
        "service-level",
        "TIDEWATER_RDMA_SERVICE_LEVEL",
        |all, value| parse(&mut all.service_level, value),
    ),
    setting("pkey", "TIDEWATER_RDMA_PKEY", |all, value| {
        parse(&mut all.pkey, value)
    }),
    setting("gid-index", "TIDEWATER_RDMA_GID_INDEX", |all, value| {
        parse(&mut all.gid_index, value)
    }),
    setting("static-rate", "TIDEWATER_RDMA_STATIC_RATE", |all, value| {
        parse(&mut all.static_rate, value)
    }),
    setting("flow-label", "TIDEWATER_RDMA_FLOW_LABEL", |all, value| {
        parse(&mut all.flow_label, value)
    }),
    setting("ece", "TIDEWATER_RDMA_ECE", |all, value| {
        parse(&mut all.ece, value)
    }),
];

fn parse<T: FromStr<Err = &'static str>>(
    into: &mut Option<T>,
    value: &str,
) -> Result<(), &'static str> {
    *into = Some(value.parse()?);
    Ok(())
}

/// Reason why a setting of RDMA queue pairs that a program gives is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// No setting has this name.
    #[error("there is no RDMA setting {name:?}; use one of {}", names())]
    Unknown {
        /// Name that was given.
        name: String,
    },
    /// The value is not one of the setting.
    #[error("RDMA setting {name} is {value:?}: {expected}")]
    Invalid {
        /// Name of the setting.
        name: &'static str,
        /// Value that was given.
        value: String,
        /// What it is not, and the valid values.
        expected: &'static str,
    },
    /// A part of the text is not `NAME=VALUE`.
    #[error(
        "{part:?} is no RDMA setting; write NAME=VALUE,NAME=VALUE with names of {}",
        names()
    )]
    Form {
        /// The part as it was given.
        part: String,
    },
    /// A setting is given twice.
    #[error("RDMA setting {name} is given twice; give it once")]
    Twice {
        /// Name of the setting.
        name: String,
    },
}

fn names() -> String {
    SETTINGS.map(|setting| setting.name).join(", ")
}

/// Sets one of the settings of RDMA queue pairs by its name, such as `traffic-class`. `_` is accepted in place
/// of `-`.
///
/// # Errors
/// [`FabricError::Unknown`] or [`FabricError::Invalid`], with the valid names or values.
pub fn set_fabric(
    settings: &mut FabricSettings,
    name: &str,
    value: &str,
) -> Result<(), FabricError> {
    let hyphened = name.replace('_', "-");
    let Some(known) = SETTINGS.into_iter().find(|known| known.name == hyphened) else {
        let name = name.to_owned();
        return Err(FabricError::Unknown { name });
    };
    (known.set)(settings, value).map_err(|expected| FabricError::Invalid {
        name: known.name,
        value: value.to_owned(),
        expected,
    })
}

/// Parses settings of RDMA queue pairs from a text such as `traffic-class=106,gid-index=3`. An empty text sets
/// nothing.
///
/// # Errors
/// [`FabricError`] of the first part that is wrong.
pub fn fabric_from_text(text: &str) -> Result<FabricSettings, FabricError> {
    let mut settings = FabricSettings::UNSET;
    let mut given = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let Some((name, value)) = part.split_once('=') else {
            let part = part.to_owned();
            return Err(FabricError::Form { part });
        };
        let name = name.replace('_', "-");
        set_fabric(&mut settings, &name, value)?;
        if given.contains(&name) {
            return Err(FabricError::Twice { name });
        }
        given.push(name);
    }
    Ok(settings)
}

/// Reads the settings of RDMA queue pairs from the `TIDEWATER_RDMA_*` variables, also for a process that
/// belongs to no job.
///
/// # Errors
/// [`EnvError::Invalid`] names the variable, its value and the valid ones.
pub fn fabric_from_env() -> Result<FabricSettings, EnvError> {
    Vars::new(std::env::vars_os()).fabric()
}

impl Vars {
    /// Reads the settings of RDMA queue pairs from the variables.
    pub(super) fn fabric(&self) -> Result<FabricSettings, EnvError> {
        let mut settings = FabricSettings::UNSET;
        for known in SETTINGS {
            if let Some(text) = self.text(known.variable)? {
                let wrong = |expected| invalid(known.variable, text, expected);
                (known.set)(&mut settings, text).map_err(wrong)?;
            }
        }
        Ok(settings)
    }
}
