//! Settings of RDMA queue pairs: what a user may set, and what follows from the port where nothing is set.
//!
//! Each setting has a flag `--rdma-NAME` and a variable `TIDEWATER_RDMA_NAME`. [`FabricSettings::on_port`]
//! completes them with the port's files in `/sys`. Servers, clients and `tidewater doctor` use the same
//! function, so that all three give the same answer.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::devices::LinkLayer;
use super::sysfs::Root;
use tidewater_protocol::limits::{
    VERBS_RETRIES, VERBS_RETRY_COUNTS, VERBS_TIMEOUT, VERBS_TIMEOUTS, VERBS_TRAFFIC_CLASS,
};
use tidewater_protocol::mutants::{self, Mutant};

/// Settings of queue pairs; `None` is unset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "clap", group(skip))]
pub struct FabricSettings {
    /// RDMA timeout: a packet is sent again after 4.096 us x 2^N, N from 8 to 22. Give less than 14 (67 ms) on
    /// a network that loses some, and more where links fail for seconds [default: TIDEWATER_RDMA_TIMEOUT, or
    /// 14].
    #[cfg_attr(
        feature = "clap",
        arg(id = "rdma-timeout", long = "rdma-timeout", value_name = "N")
    )]
    pub timeout: Option<RdmaTimeout>,
    /// Times that an RDMA packet is sent again before its lane breaks, 1 to 7 [default: TIDEWATER_RDMA_RETRIES,
    /// or 6].
    #[cfg_attr(
        feature = "clap",
        arg(id = "rdma-retries", long = "rdma-retries", value_name = "N")
    )]
    pub retries: Option<RdmaRetries>,
    /// Traffic class of RDMA packets, 0 to 255: four times their DSCP [default: TIDEWATER_RDMA_TRAFFIC_CLASS,
    /// or that of the port, or 106 on RoCE].
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "rdma-traffic-class",
            long = "rdma-traffic-class",
            value_name = "N"
        )
    )]
    pub traffic_class: Option<TrafficClass>,
    /// InfiniBand service level, 0 to 15; on RoCE the priority of a VLAN tag [default:
    /// TIDEWATER_RDMA_SERVICE_LEVEL, or 0].
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "rdma-service-level",
            long = "rdma-service-level",
            value_name = "N"
        )
    )]
    pub service_level: Option<ServiceLevel>,
    /// P_Key (partition) by its value, as in 0x8001; an entry with full membership is preferred [default:
    /// TIDEWATER_RDMA_PKEY, or the port's first one with full membership].
    #[cfg_attr(
        feature = "clap",
        arg(id = "rdma-pkey", long = "rdma-pkey", value_name = "KEY")
    )]
    pub pkey: Option<PKey>,
    /// Index of the RDMA port's GID, 0 to 255 [default: TIDEWATER_RDMA_GID_INDEX, or that of the connection's
    /// address].
    #[cfg_attr(
        feature = "clap",
        arg(id = "rdma-gid-index", long = "rdma-gid-index", value_name = "N")
    )]
    pub gid_index: Option<GidIndex>,
    /// Most Gb/s that a queue pair sends: 2.5, 5, 10, 14, 20, 25, 28, 30, 40, 50, 56, 60, 80, 100, 112, 120,
    /// 168, 200, 300, 400, 600, 800, 1200 or max [default: TIDEWATER_RDMA_STATIC_RATE, or max].
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "rdma-static-rate",
            long = "rdma-static-rate",
            value_name = "GBPS"
        )
    )]
    pub static_rate: Option<StaticRate>,
    /// IPv6 flow label of RDMA packets, 0 to 0xfffff; on RoCE v2 it selects the UDP source port, by which
    /// switches spread packets over links. 0: derived from the queue pairs' numbers [default:
    /// TIDEWATER_RDMA_FLOW_LABEL, or 0].
    #[cfg_attr(
        feature = "clap",
        arg(id = "rdma-flow-label", long = "rdma-flow-label", value_name = "N")
    )]
    pub flow_label: Option<FlowLabel>,
    /// Whether both ends negotiate enhanced connection establishment (ECE), which switches on a NIC's own
    /// accelerations: on or off [default: TIDEWATER_RDMA_ECE, or on where the library has it].
    #[cfg_attr(
        feature = "clap",
        arg(id = "rdma-ece", long = "rdma-ece", value_name = "on|off")
    )]
    pub ece: Option<Ece>,
}

/// A number of one setting: parsed, within its range.
macro_rules! setting {
    ($(#[$doc:meta])* $name:ident($number:ty) in $range:expr, $expected:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub struct $name($number);

        impl $name {
            /// Returns the number of this setting.
            pub const fn get(self) -> $number {
                self.0
            }
        }

        impl FromStr for $name {
            type Err = &'static str;

            fn from_str(text: &str) -> Result<Self, &'static str> {
                let range: RangeInclusive<$number> = $range;
                let number = number(text).and_then(|n| <$number>::try_from(n).ok());
                number.filter(|n| range.contains(n)).map(Self).ok_or($expected)
            }
        }
    };
}

setting! {
    /// Retransmission timeout of a queue pair: 4.096 us x 2^this, 1 ms (8) to 17 s (22).
    RdmaTimeout(u8) in VERBS_TIMEOUTS,
    "not an RDMA timeout; use 8 to 22, which stand for 4.096 us x 2^8 to 2^22: 1 ms to 17 s"
}
setting! {
    /// Retransmissions of a packet before its lane breaks. Soft-RoCE counts 7 as endless.
    RdmaRetries(u8) in VERBS_RETRY_COUNTS,
    "not a number of RDMA retries; use 1 to 7"
}
setting! {
    /// Traffic class in the IP header of RoCE v2 packets: DSCP << 2, with the two bits of ECN.
    TrafficClass(u8) in 0..=u8::MAX,
    "not a traffic class; use 0 to 255, four times the DSCP: 104 for DSCP 26"
}
setting! {
    /// InfiniBand service level, which selects a virtual lane.
    ServiceLevel(u8) in 0..=15,
    "not a service level; use 0 to 15"
}
setting! {
    /// Index of an entry in a port's GID table.
    GidIndex(u8) in 0..=u8::MAX,
    "not a GID index; use 0 to 255, as in /sys/class/infiniband/DEVICE/ports/PORT/gids"
}
setting! {
    /// IPv6 flow label: 20 bits.
    FlowLabel(u32) in 0..=0xf_ffff,
    "not a flow label; use 0 to 0xfffff"
}

/// Partition of a subnet: a 15-bit number, and in the highest bit whether the port is a full member. Two
/// limited members of a partition cannot reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PKey(u16);

/// Bit of a P_Key: the port is a full member.
const FULL_MEMBER: u16 = 0x8000;
/// Every port of a subnet without partitions is a full member of this one.
const DEFAULT_PKEY: u16 = 0xffff;

impl PKey {
    /// Wraps the value of a port's table; `None` for an empty entry.
    pub const fn new(value: u16) -> Option<Self> {
        match value & !FULL_MEMBER {
            0 => None,
            _ => Some(Self(value)),
        }
    }

    /// Returns the 16-bit value.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Whether the port is a full member of the partition.
    pub const fn is_full_member(self) -> bool {
        self.0 & FULL_MEMBER != 0
    }

    /// Whether both belong to one partition.
    pub const fn is_same_partition(self, other: Self) -> bool {
        (self.0 ^ other.0) & !FULL_MEMBER == 0
    }

    /// Whether a port with this P_Key accepts packets of one with the other.
    pub const fn reaches(self, other: Self) -> bool {
        self.is_same_partition(other) && (self.is_full_member() || other.is_full_member())
    }
}

impl FromStr for PKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let value = number(text).and_then(|n| u16::try_from(n).ok());
        value.and_then(Self::new).ok_or(
            "not a P_Key; use 0x1 to 0xffff, as in /sys/class/infiniband/DEVICE/ports/PORT/pkeys",
        )
    }
}

/// Most Gb/s that a queue pair sends, as one of the rates that InfiniBand defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StaticRate(u8);

/// Gb/s and number of each rate (`enum ibv_rate`).
const RATES: [(&str, u8); 24] = [
    ("max", 0),
    ("2.5", 2),
    ("5", 5),
    ("10", 3),
    ("14", 11),
    ("20", 6),
    ("25", 15),
    ("28", 19),
    ("30", 4),
    ("40", 7),
    ("50", 20),
    ("56", 12),
    ("60", 8),
    ("80", 9),
    ("100", 16),
    ("112", 13),
    ("120", 10),
    ("168", 14),
    ("200", 17),
    ("300", 18),
    ("400", 21),
    ("600", 22),
    ("800", 23),
    ("1200", 24),
];

impl StaticRate {
    /// Returns the number of the rate (`enum ibv_rate`); 0 is the port's own rate.
    pub const fn code(self) -> u8 {
        self.0
    }
}

impl FromStr for StaticRate {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let known = RATES.iter().find(|(name, _)| *name == text);
        known.map(|&(_, code)| Self(code)).ok_or(
            "not a static rate; use max, or Gb/s of a rate that InfiniBand defines: 2.5, 5, 10, 14, 20, 25, \
             28, 30, 40, 50, 56, 60, 80, 100, 112, 120, 168, 200, 300, 400, 600, 800 or 1200",
        )
    }
}

/// Whether ECE is negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ece(bool);

impl FromStr for Ece {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "on" => Ok(Self(true)),
            "off" => Ok(Self(false)),
            _ => Err("neither on nor off"),
        }
    }
}

/// A number in decimal, or in hexadecimal with `0x`.
fn number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // `from_str_radix` accepts a sign.
    let is_plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
    u32::from_str_radix(digits, radix).ok().filter(|_| is_plain)
}

macro_rules! shown {
    ($format:literal: $($name:ident),*) => {
        $(impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        })*
    };
}

shown!("{}": RdmaTimeout, RdmaRetries, TrafficClass, ServiceLevel, GidIndex);
shown!("{:#x}": FlowLabel, PKey);

impl fmt::Display for StaticRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = RATES.iter().find(|(_, code)| *code == self.0);
        f.write_str(known.map_or("max", |(name, _)| name))
    }
}

impl fmt::Display for Ece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { "on" } else { "off" })
    }
}

impl FabricSettings {
    /// All settings unset, as a constant.
    pub const UNSET: Self = Self {
        timeout: None,
        retries: None,
        traffic_class: None,
        service_level: None,
        pkey: None,
        gid_index: None,
        static_rate: None,
        flow_label: None,
        ece: None,
    };

    /// Takes each unset setting from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            timeout: self.timeout.or(other.timeout),
            retries: self.retries.or(other.retries),
            traffic_class: self.traffic_class.or(other.traffic_class),
            service_level: self.service_level.or(other.service_level),
            pkey: self.pkey.or(other.pkey),
            gid_index: self.gid_index.or(other.gid_index),
            static_rate: self.static_rate.or(other.static_rate),
            flow_label: self.flow_label.or(other.flow_label),
            ece: self.ece.or(other.ece),
        }
    }

    /// Returns the environment variable and value of each setting that is set.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        fn text<T: fmt::Display>(setting: Option<T>) -> Option<String> {
            setting.map(|value| value.to_string())
        }
        let all = [
            ("TIDEWATER_RDMA_TIMEOUT", text(self.timeout)),
            ("TIDEWATER_RDMA_RETRIES", text(self.retries)),
            ("TIDEWATER_RDMA_TRAFFIC_CLASS", text(self.traffic_class)),
            ("TIDEWATER_RDMA_SERVICE_LEVEL", text(self.service_level)),
            ("TIDEWATER_RDMA_PKEY", text(self.pkey)),
            ("TIDEWATER_RDMA_GID_INDEX", text(self.gid_index)),
            ("TIDEWATER_RDMA_STATIC_RATE", text(self.static_rate)),
            ("TIDEWATER_RDMA_FLOW_LABEL", text(self.flow_label)),
            ("TIDEWATER_RDMA_ECE", text(self.ece)),
        ];
        let set = |(name, value): (_, Option<String>)| Some((name, value?));
        all.into_iter().filter_map(set).collect()
    }

    /// Returns the exponent of the timeout: a packet is sent again after 4.096 us x 2^this.
    pub fn timeout_exponent(&self) -> u8 {
        self.timeout.map_or(VERBS_TIMEOUT, RdmaTimeout::get)
    }

    /// Returns the number of retransmissions of a packet.
    pub fn retry_count(&self) -> u8 {
        self.retries.map_or(VERBS_RETRIES, RdmaRetries::get)
    }

    /// Returns whether ECE is negotiated.
    pub fn negotiates_ece(&self) -> bool {
        self.ece.is_none_or(|ece| ece.0)
    }

    /// Longest time in which queue pairs resend a packet before they fail: 4 x (retries + 1) timeouts, because
    /// devices may take four times the timeout for each attempt.
    pub fn longest_retry(&self) -> Duration {
        longest_retry(self.timeout_exponent(), self.retry_count())
    }

    /// Completes the settings with what a port says: its traffic class, its P_Key table. Cost: one small file
    /// for the traffic class, one for each entry of the P_Key table up to the one taken.
    ///
    /// # Errors
    /// [`NoPKey`]: the port's table does not have the P_Key.
    pub fn on_port(
        &self,
        root: &Root,
        device: &str,
        port: u32,
        link: LinkLayer,
    ) -> Result<PortSettings, NoPKey> {
        let (traffic_class, traffic_class_from) = match (self.traffic_class, link) {
            (Some(set), _) => (set.get(), ClassFrom::User),
            (None, LinkLayer::InfiniBand) => (0, ClassFrom::Usual),
            (None, _) => match configured_class(root, device, port) {
                Some(class) => (class, ClassFrom::Port),
                None => (VERBS_TRAFFIC_CLASS, ClassFrom::Usual),
            },
        };
        let (pkey_index, pkey) = self.find_pkey(root, device, port)?;
        Ok(PortSettings {
            traffic_class,
            traffic_class_from,
            service_level: self.service_level.map_or(0, ServiceLevel::get),
            pkey,
            pkey_index,
            static_rate: self.static_rate.map_or(0, StaticRate::code),
            flow_label: self.flow_label.map_or(0, FlowLabel::get),
        })
    }

    /// Finds the requested P_Key in the port's table, or the first one with full membership. A limited
    /// membership is taken where there is no full one.
    fn find_pkey(&self, root: &Root, device: &str, port: u32) -> Result<(u16, PKey), NoPKey> {
        let table = PKeys::new(root, device, port);
        let fits = |(_, key): &(u16, PKey)| self.pkey.is_none_or(|set| set.is_same_partition(*key));
        let mut limited = None;
        for entry in table.iter().filter(fits) {
            if entry.1.is_full_member() || mutants::on(Mutant::LimitedPkeyTaken) {
                return Ok(entry);
            }
            limited = limited.or(Some(entry));
        }
        // A provider without a table has the default partition only.
        let default = PKey(DEFAULT_PKEY);
        let without = || (table.is_absent() && fits(&(0, default))).then_some((0, default));
        limited.or_else(without).ok_or_else(|| NoPKey {
            port: format!("{device}:{port}").into(),
            wanted: self.pkey,
            table: table.iter().map(|(_, key)| key).collect(),
        })
    }
}

/// Longest time of `retries` retransmissions with a timeout of 4.096 us x 2^`exponent`.
pub const fn longest_retry(exponent: u8, retries: u8) -> Duration {
    let timeout_ns = 4_096_u64 << exponent;
    Duration::from_nanos(timeout_ns * 4 * (retries as u64 + 1))
}

/// Settings of queue pairs on one port, complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortSettings {
    /// Traffic class: DSCP << 2, with the two bits of ECN.
    pub traffic_class: u8,
    /// Origin of the traffic class.
    pub traffic_class_from: ClassFrom,
    /// Service level of the packets.
    pub service_level: u8,
    /// P_Key of the port's table.
    pub pkey: PKey,
    /// Index of the P_Key in that table.
    pub pkey_index: u16,
    /// Static rate, a number of `enum ibv_rate`; 0 is the port's own.
    pub static_rate: u8,
    /// Flow label; 0 is derived from the queue pairs' numbers.
    pub flow_label: u32,
}

/// Origin of a traffic class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassFrom {
    /// A flag or variable.
    User,
    /// The port's file `/sys/class/infiniband/DEVICE/tc/PORT/traffic_class`.
    Port,
    /// The default value of the link layer.
    Usual,
}

/// A port's table lacks the P_Key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoPKey {
    /// Device and port, as in `mlx5_0:1`.
    pub port: Box<str>,
    /// Requested P_Key; `None`: any.
    pub wanted: Option<PKey>,
    /// P_Keys of the port.
    pub table: Box<[PKey]>,
}

impl fmt::Display for NoPKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            port,
            wanted,
            table,
        } = self;
        let known: Vec<String> = table.iter().map(PKey::to_string).collect();
        match wanted {
            Some(wanted) if table.is_empty() => {
                write!(f, "{port} has no P_Key {wanted}; it has none")
            }
            Some(wanted) => write!(
                f,
                "{port} has no P_Key {wanted}; it has {}. Give one of these as --rdma-pkey, or add the port to \
                 the partition in the subnet manager",
                known.join(", ")
            ),
            None => write!(
                f,
                "{port} has no P_Key at all: the subnet manager has put it into no partition"
            ),
        }
    }
}

impl std::error::Error for NoPKey {}

/// Reads the traffic class that an administrator has configured for all queue pairs of a port. The first line
/// is `Global tclass=N`; other lines are rules for some packets.
fn configured_class(root: &Root, device: &str, port: u32) -> Option<u8> {
    let text = root.text(format!(
        "sys/class/infiniband/{device}/tc/{port}/traffic_class"
    ))?;
    let mut lines = text.lines();
    lines
        .find_map(|line| line.trim().strip_prefix("Global tclass="))?
        .trim()
        .parse()
        .ok()
}

/// P_Key table of a port: `/sys/class/infiniband/DEVICE/ports/PORT/pkeys`.
struct PKeys<'a> {
    root: &'a Root,
    folder: String,
    indices: Vec<u32>,
}

impl<'a> PKeys<'a> {
    fn new(root: &'a Root, device: &str, port: u32) -> Self {
        let folder = format!("sys/class/infiniband/{device}/ports/{port}/pkeys");
        let indices = root.numbered(&folder, "");
        Self {
            root,
            folder,
            indices,
        }
    }

    fn is_absent(&self) -> bool {
        self.indices.is_empty()
    }

    /// Iterates over the entries that are not empty, by index.
    fn iter(&self) -> impl Iterator<Item = (u16, PKey)> {
        self.indices.iter().filter_map(|&index| {
            let text = self.root.text(format!("{}/{index}", self.folder))?;
            let value = number(&text).and_then(|n| u16::try_from(n).ok())?;
            Some((u16::try_from(index).ok()?, PKey::new(value)?))
        })
    }
}
