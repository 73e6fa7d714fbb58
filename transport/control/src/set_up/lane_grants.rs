//! Which lanes of a session may be connected, and by which request.

use tidewater_protocol::ids::ApplierId;

/// A lane as a request names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane {
    /// Applier of the lane.
    pub applier: ApplierId,
    /// Nonce with which the lane was granted.
    pub nonce: u64,
}

/// State of one lane's grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grant {
    /// The lane is connected, or is broken and was not recovered.
    Used,
    /// A request with this nonce may connect it, once.
    Granted(u64),
    /// The request with this nonce is being served.
    Connecting(u64),
}

/// The grants of one session, by applier. Cost of each call: the lanes that it names.
#[derive(Debug)]
pub struct LaneGrants {
    lanes: Vec<Grant>,
}

impl LaneGrants {
    /// A session of `lanes` lanes, none of them granted.
    pub fn new(lanes: usize) -> Self {
        Self {
            lanes: vec![Grant::Used; lanes],
        }
    }

    /// Number of lanes, granted or not.
    pub const fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Whether the session has no lane.
    pub const fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Nonce with which the lane may be connected; `None` for a lane that is not granted.
    pub fn nonce(&self, applier: ApplierId) -> Option<u64> {
        match self.lanes.get(usize::from(applier.0)) {
            Some(&Grant::Granted(nonce)) => Some(nonce),
            _ => None,
        }
    }

    /// Grants the lane with a new nonce, or with none if it needs no connection. A request that is connecting it is
    /// void from now on. Ignores an applier that the session does not have.
    pub fn grant(&mut self, applier: ApplierId, nonce: Option<u64>) {
        if let Some(lane) = self.lanes.get_mut(usize::from(applier.0)) {
            *lane = nonce.map_or(Grant::Used, Grant::Granted);
        }
    }

    /// Whether the lane may be connected with this nonce.
    pub fn is_granted(&self, lane: Lane) -> bool {
        self.nonce(lane.applier) == Some(lane.nonce)
    }

    /// Begins to connect all lanes of a request. False, and nothing changes, if one of them is not granted.
    pub fn begin(&mut self, lanes: &[Lane]) -> bool {
        let all = lanes.iter().all(|&lane| self.is_granted(lane));
        if all {
            self.set(lanes, Grant::Connecting);
        }
        all
    }

    /// Whether the request still connects all its lanes: none was granted again since.
    pub fn is_connecting(&self, lanes: &[Lane]) -> bool {
        let connects = |lane: &Lane| self.holds(*lane, Grant::Connecting(lane.nonce));
        lanes.iter().all(connects)
    }

    /// Ends a request. `made` says whether all its lanes were made. Returns whether they may be used. If not, those
    /// that were not granted again since may be connected with the same nonce.
    pub fn finish(&mut self, lanes: &[Lane], made: bool) -> bool {
        let used = made && self.is_connecting(lanes);
        for &lane in lanes {
            if self.holds(lane, Grant::Connecting(lane.nonce)) {
                let next = if used {
                    Grant::Used
                } else {
                    Grant::Granted(lane.nonce)
                };
                self.lanes[usize::from(lane.applier.0)] = next;
            }
        }
        used
    }

    fn holds(&self, lane: Lane, grant: Grant) -> bool {
        self.lanes.get(usize::from(lane.applier.0)) == Some(&grant)
    }

    fn set(&mut self, lanes: &[Lane], to: impl Fn(u64) -> Grant) {
        for lane in lanes {
            self.lanes[usize::from(lane.applier.0)] = to(lane.nonce);
        }
    }
}
