//! Functions on tables that take effect at ticks: held until their iteration is closed.
//!
//! An UPDATE frame of such a table belongs to the iteration in its header. A tick cannot refuse, so the frame is
//! checked completely on arrival, and held apart from the pushes. When the iteration is closed, first the sums of
//! all tables of the domain take their steps. Then its functions run in the order of rank, thread and frame, a bounded
//! number of elements at a time. Each sees the results of those before it. They read elements of their own places, in
//! tables of the same ticks only: so the bits depend neither on timing nor on which server owns which partition.
//!
//! What could fail or depend on timing at a tick is refused on arrival, see [`AtTickProblem`].

use std::sync::Arc;

use tidewater_protocol::layout::frame::FrameHeader;
use tidewater_protocol::layout::function::{
    AtTickProblem, FunctionBody, FunctionCall, FunctionProblem,
};

use super::Refusal;
use super::engine::{Effect, Engine};
use super::pending::{Held, StreamKey};
use super::table::Store;
use crate::namespace::FrameSender;

impl Engine {
    /// Checks an UPDATE frame of a table of ticks and holds it for the tick of its iteration.
    ///
    /// # Errors
    /// [`Refusal`]; nothing is held then. `PendingFull` when the functions of all iterations need more than their
    /// budget, which is as large as that of early pushes and apart from it.
    pub(super) fn hold_function(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
        call: &FunctionCall<'_>,
        payload: &[u8],
    ) -> Result<Effect, Refusal> {
        let spec = Arc::clone(&self.known(sender.namespace, header.table)?.spec);
        let is_expression = matches!(call.body, FunctionBody::Expression(_));
        if let Some(problem) = AtTickProblem::of(&spec, is_expression) {
            return Err(FunctionProblem::AtTick.with(problem as u64));
        }
        for (n, input) in (0..).zip(&call.tables[..call.inputs]) {
            let input = &self.known(sender.namespace, *input)?;
            if !input.at_clock() || input.spec.domain != spec.domain {
                return Err(FunctionProblem::Input.with(n));
            }
        }
        self.check_function(header, call, &spec)?;
        // Turns have no meaning for a function, and pushes have a budget of their own.
        self.check_clock(sender, header)?;
        self.held_functions.room(payload.len())?;
        let key = StreamKey {
            namespace: sender.namespace,
            domain: spec.domain,
            iteration: header.clock,
            thread: sender.thread,
        };
        self.held_functions.hold(key, false, *header, payload)?;
        Ok(Effect::Applied)
    }

    /// Runs a held function at its tick and returns the bytes of the elements that its frame covers. Returns 0,
    /// with no effect, if its table or an input was released meanwhile; a released input is logged. A failure
    /// stops the applier.
    pub(super) fn run_held_function(&mut self, held: &Held) -> usize {
        let mut payload = Vec::new();
        self.held_functions.payload(held, &mut payload);
        let Some(call) = FunctionCall::decode(&payload) else {
            unreachable!(
                "a function is held that was decoded before: {:?}",
                held.header
            );
        };
        let header = &held.header;
        if !self.tables.contains_key(&header.table) {
            return 0;
        }
        let mut inputs = call.tables[..call.inputs].iter();
        if let Some(released) = inputs.find(|id| !self.tables.contains_key(id)) {
            tracing::warn!(
                table = header.table,
                input = released,
                iteration = header.clock,
                "a function of a tick has no effect: one of its inputs was released before the tick"
            );
            return 0;
        }
        let spec = Arc::clone(&self.tables[&header.table].spec);
        self.lsn += 1;
        let ran = self
            .span(header, &call, &spec)
            .and_then(|span| self.run_call(header, &call, &span, None, &mut || ()));
        if let Err(reason) = ran {
            self.fail(format_args!(
                "a function of table {} that was accepted for iteration {} could not be run: {reason:?}",
                header.table, header.clock
            ));
        }
        let unit = match self.tables[&header.table].store {
            Store::Blocks(_) => spec.dtype.size(),
            Store::Rows(_) | Store::Sparse(_) => spec.row_bytes(),
        };
        header.count as usize * unit
    }
}
