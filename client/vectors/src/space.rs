//! Spaces, the slots of their vectors, and copies between a vector and the program.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::HashMap;
use std::rc::Rc;

use crate::float::Float;
use tidewater::{Client, ClientError, Expression, FunctionArgs, PullOptions, Table, TableBuilder};
use tidewater_protocol::limits::PARTITIONS_DEFAULT;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::{Init, Optimizer, PushOp};

/// Number of a vector in its space, and of the slot's use: another vector in the slot has another
/// generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VectorId {
    /// Slot in the space, from 0. Its table is named `SPACE/SLOT`.
    pub slot: u32,
    /// Use of the slot, from 1.
    pub generation: u64,
}

/// Numbers of vectors of a [`VectorSpace`], from [`VectorSpace::usage`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VectorUsage {
    /// Vectors in use now.
    pub now: usize,
    /// Most vectors in use at the same time so far.
    pub most: usize,
}

/// Vectors of one dimension, with the client that operates on them. Clones share it.
#[derive(Debug)]
pub struct VectorSpace<T> {
    pub(crate) inner: Rc<Inner<T>>,
}

impl<T> Clone for VectorSpace<T> {
    fn clone(&self) -> Self {
        Self {
            inner: Rc::clone(&self.inner),
        }
    }
}

/// State of a space.
#[derive(Debug)]
pub(crate) struct Inner<T> {
    client: Rc<RefCell<Client>>,
    name: String,
    dim: u64,
    partitions: u32,
    slots: RefCell<Vec<Slot<T>>>,
    free: RefCell<Vec<u32>>,
    /// Most slots that were in use at once.
    peak: Cell<usize>,
    compiled: RefCell<HashMap<&'static str, Rc<Expression<T>>>>,
    failure: RefCell<Option<ClientError>>,
}

#[derive(Debug, Clone, Copy)]
struct Slot<T> {
    table: Table<T>,
    generation: u64,
}

/// A vector on the servers. A clone shares the elements; a change of one of them copies first. Dropping
/// the last clone gives the slot back at once.
#[derive(Debug)]
pub struct Vector<T> {
    pub(crate) space: Rc<Inner<T>>,
    pub(crate) lease: Rc<Lease<T>>,
}

impl<T> Clone for Vector<T> {
    fn clone(&self) -> Self {
        Self {
            space: Rc::clone(&self.space),
            lease: Rc::clone(&self.lease),
        }
    }
}

/// Two handles are equal if they are the same vector; elements are not compared.
impl<T> PartialEq for Vector<T> {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.space, &other.space) && self.lease.id == other.lease.id
    }
}

/// Use of a slot by one vector and its clones.
#[derive(Debug)]
pub(crate) struct Lease<T> {
    space: Rc<Inner<T>>,
    pub(crate) id: VectorId,
    pub(crate) table: Table<T>,
}

impl<T> Drop for Lease<T> {
    fn drop(&mut self) {
        self.space.free.borrow_mut().push(self.id.slot);
    }
}

impl<T: Float> VectorSpace<T> {
    /// Makes a space of vectors with `dim` elements. Its tables are named `NAME/0`, `NAME/1`, ...; one
    /// program at a time uses a name. They have 64 partitions on any number of servers, so that sums have
    /// the same bits.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a dimension of 0 or over 2^32 - 1 columns of a table.
    pub fn new(client: Client, name: &str, dim: u64) -> Result<Self, ClientError> {
        Self::with_partitions(client, name, dim, PARTITIONS_DEFAULT)
    }

    /// Like [`VectorSpace::new`] with a number of partitions: at most one for each block of 16 KiB is of
    /// use.
    ///
    /// # Errors
    /// As [`VectorSpace::new`].
    pub fn with_partitions(
        client: Client,
        name: &str,
        dim: u64,
        partitions: u32,
    ) -> Result<Self, ClientError> {
        Self::of(Rc::new(RefCell::new(client)), name, dim, partitions)
    }

    /// Makes another space with the same client and number of partitions.
    ///
    /// # Errors
    /// As [`VectorSpace::new`].
    pub fn another(&self, name: &str, dim: u64) -> Result<Self, ClientError> {
        let client = Rc::clone(&self.inner.client);
        Self::of(client, name, dim, self.inner.partitions)
    }

    fn of(
        client: Rc<RefCell<Client>>,
        name: &str,
        dim: u64,
        partitions: u32,
    ) -> Result<Self, ClientError> {
        if dim == 0 {
            return Err(ClientError::Argument {
                op: "vector space",
                table: name.to_owned(),
                what: "vectors of 0 elements; give at least 1".into(),
            });
        }
        Ok(Self {
            inner: Rc::new(Inner {
                client,
                name: name.to_owned(),
                dim,
                partitions,
                slots: RefCell::default(),
                free: RefCell::default(),
                peak: Cell::new(0),
                compiled: RefCell::default(),
                failure: RefCell::default(),
            }),
        })
    }

    /// Name of the space: the beginning of its tables' names.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Definition of a table that lies like the vectors.
    pub(crate) fn builder(&self, name: &str) -> TableBuilder {
        self.inner.builder(name)
    }

    /// Number of partitions of each table.
    pub(crate) fn partitions(&self) -> u32 {
        self.inner.partitions
    }

    /// Number of elements of each vector.
    pub fn dim(&self) -> u64 {
        self.inner.dim
    }

    /// The space's client, for calls between operations: barriers, other tables.
    ///
    /// # Panics
    /// If it is borrowed already: drop the result before the next operation of the space.
    pub fn client(&self) -> RefMut<'_, Client> {
        self.inner.client.borrow_mut()
    }

    /// A vector of zeroes.
    ///
    /// # Errors
    /// The coordinator's refusal when a new table does not fit; a deadline.
    pub fn zeros(&self) -> Result<Vector<T>, ClientError> {
        self.filled(T::default())
    }

    /// A vector with all elements equal.
    ///
    /// # Errors
    /// As [`VectorSpace::zeros`].
    pub fn filled(&self, value: T) -> Result<Vector<T>, ClientError> {
        let vector = Vector::lease(&self.inner)?;
        if value != T::default() || !on(Mutant::ZerosNotAssigned) {
            vector.assign("p0", &[], &[value.into()])?;
        }
        Ok(vector)
    }

    /// A vector of random or constant elements. An element depends on `init`, `seed` and its index only: the bits are the
    /// same on any number of servers and partitions.
    ///
    /// # Errors
    /// As [`VectorSpace::zeros`]; [`ClientError::Argument`] for numbers of `init` that are out of range.
    ///
    /// # Cost
    /// A table, `NAME/random`, for the time of the call, and a copy at the servers.
    pub fn random(&self, init: Init, seed: u64) -> Result<Vector<T>, ClientError> {
        let spec = self.builder(&format!("{}/random", self.inner.name));
        let table = self
            .client()
            .create_table::<T>(spec.init(init, seed).spec())?;
        // The table is freed where the copy has failed, too. The copy ends before its input is freed.
        let copied = Vector::of_table(self, &table);
        let copied = copied.and_then(|vector| self.client().flush().map(|()| vector));
        let freed = self.client().release_table(table);
        copied.and_then(|vector| freed.map(|()| vector))
    }

    /// A vector with these elements.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for another number of elements; as [`VectorSpace::zeros`].
    pub fn from_slice(&self, values: &[T]) -> Result<Vector<T>, ClientError> {
        self.inner.check_len("from_slice", values.len())?;
        let vector = Vector::lease(&self.inner)?;
        vector.store(values)?;
        Ok(vector)
    }

    /// The live vector of a number.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a number of a dropped vector, or of no slot.
    pub fn table_of(&self, id: VectorId) -> Result<Table<T>, ClientError> {
        let slots = self.inner.slots.borrow();
        let slot = slots.get(id.slot as usize);
        let free = self.inner.free.borrow().contains(&id.slot);
        match slot {
            Some(slot) if slot.generation == id.generation && !free => Ok(slot.table),
            _ => Err(ClientError::Argument {
                op: "vector",
                table: format!("{}/{}", self.inner.name, id.slot),
                what: format!("generation {} of it was dropped", id.generation),
            }),
        }
    }

    /// Number of vectors in use. Each takes a table.
    pub fn usage(&self) -> VectorUsage {
        let slots = self.inner.slots.borrow().len();
        VectorUsage {
            now: slots - self.inner.free.borrow().len(),
            most: self.inner.peak.get(),
        }
    }

    /// Fails with the first error of an operator or of a solver's trait since the last call.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self) -> Result<(), ClientError> {
        self.inner.take_failure()
    }

    /// Ends the space: frees its tables on all servers.
    ///
    /// # Errors
    /// [`ClientError::Argument`] while vectors or clones of the space are in use; the coordinator's
    /// refusal.
    pub fn release(self) -> Result<(), ClientError> {
        self.free_tables().map(drop)
    }

    /// Ends the space, frees its tables and returns its client.
    ///
    /// # Errors
    /// As [`VectorSpace::release`]; while other spaces use the client.
    pub fn into_client(self) -> Result<Client, ClientError> {
        let table = self.inner.name.clone();
        let client = self.free_tables()?;
        let client = Rc::try_unwrap(client).map_err(|_| ClientError::Argument {
            op: "into_client",
            table,
            what: "other spaces use the client; release them first".into(),
        })?;
        Ok(client.into_inner())
    }

    fn free_tables(self) -> Result<Rc<RefCell<Client>>, ClientError> {
        let used = self.usage().now;
        let name = self.inner.name.clone();
        let inner = Rc::try_unwrap(self.inner).map_err(|_| ClientError::Argument {
            op: "release",
            table: name,
            what: format!("{used} of its vectors, or clones of the space, are in use; drop them"),
        })?;
        let mut first = Ok(());
        for slot in inner.slots.into_inner() {
            let released = inner.client.borrow_mut().release_table(slot.table);
            first = first.and(released);
        }
        first.map(|()| inner.client)
    }
}

impl<T: Float> Inner<T> {
    fn check_len(&self, op: &'static str, len: usize) -> Result<(), ClientError> {
        if len as u64 == self.dim {
            return Ok(());
        }
        Err(ClientError::Argument {
            op,
            table: self.name.clone(),
            what: format!("{len} elements for vectors of {}", self.dim),
        })
    }

    /// Fails with the kept failure, once.
    fn take_failure(&self) -> Result<(), ClientError> {
        self.failure.borrow_mut().take().map_or(Ok(()), Err)
    }

    /// Keeps the first failure of an operation that cannot return it.
    pub(crate) fn keep_failure(&self, error: ClientError) {
        if !on(Mutant::FailureForgotten) {
            self.failure.borrow_mut().get_or_insert(error);
        }
    }

    pub(crate) fn compiled(&self, text: &'static str) -> Result<Rc<Expression<T>>, ClientError> {
        if let Some(expression) = self.compiled.borrow().get(text) {
            return Ok(Rc::clone(expression));
        }
        let expression = Rc::new(Expression::parse(text)?);
        let kept = Rc::clone(&expression);
        self.compiled.borrow_mut().insert(text, kept);
        Ok(expression)
    }

    /// Definition of a table that lies like the vectors.
    fn builder(&self, name: &str) -> TableBuilder {
        TableBuilder::range::<T>(name, self.dim, 1)
            .optimizer(Optimizer::None)
            .finite_check(false)
            .partitions(self.partitions)
    }

    fn take_slot(&self) -> Result<(VectorId, Table<T>), ClientError> {
        let free = self.free.borrow_mut().pop();
        let mut slots = self.slots.borrow_mut();
        let slot = match free {
            Some(slot) => slot,
            None => {
                let slot = slots.len() as u32;
                let name = format!("{}/{slot}", self.name);
                let table = self.builder(&name);
                let table = self.client.borrow_mut().create_table(table.spec())?;
                slots.push(Slot {
                    table,
                    generation: 0,
                });
                slot
            }
        };
        let used = slots.len() - self.free.borrow().len();
        self.peak.set(self.peak.get().max(used));
        let taken = &mut slots[slot as usize];
        taken.generation += u64::from(!on(Mutant::GenerationKept));
        let generation = taken.generation;
        Ok((VectorId { slot, generation }, taken.table))
    }
}

impl<T: Float> Vector<T> {
    /// A vector with the elements that its slot had last: the caller overwrites all of them.
    pub(crate) fn lease(space: &Rc<Inner<T>>) -> Result<Self, ClientError> {
        let (id, table) = space.take_slot()?;
        let lease = Rc::new(Lease {
            space: Rc::clone(space),
            id,
            table,
        });
        Ok(Self {
            space: Rc::clone(space),
            lease,
        })
    }

    /// Number of the vector: by it, another worker finds the table, and a stale use is noticed.
    pub fn id(&self) -> VectorId {
        self.lease.id
    }

    /// The table with the elements.
    pub fn table(&self) -> Table<T> {
        self.lease.table
    }

    /// The space of the vector.
    pub fn space(&self) -> VectorSpace<T> {
        VectorSpace {
            inner: Rc::clone(&self.space),
        }
    }

    /// Number of elements of the vector.
    pub fn dim(&self) -> u64 {
        self.space.dim
    }

    /// Whether it is a vector of a space.
    pub(crate) fn is_of(&self, space: &VectorSpace<T>) -> bool {
        Rc::ptr_eq(&self.space, &space.inner)
    }

    /// A vector with the elements of a table that lies like the vectors of the space.
    pub(crate) fn of_table(space: &VectorSpace<T>, table: &Table<T>) -> Result<Self, ClientError> {
        let vector = Self::lease(&space.inner)?;
        let copy = space.inner.compiled("x")?;
        let args = FunctionArgs {
            inputs: &[table],
            ..FunctionArgs::default()
        };
        // As in `assign`.
        let _ticket = space.client().update(&vector.lease.table, &copy, &args)?;
        Ok(vector)
    }

    /// Sets each element of this vector to the value of an expression over `inputs`.
    pub(crate) fn assign(
        &self,
        text: &'static str,
        inputs: &[&Self],
        parameters: &[f64],
    ) -> Result<(), ClientError> {
        self.same_space(inputs)?;
        let expression = self.space.compiled(text)?;
        let tables: Vec<&Table<T>> = inputs.iter().map(|input| &input.lease.table).collect();
        let args = FunctionArgs {
            inputs: &tables,
            parameters,
            range: None,
        };
        let mut client = self.space.client.borrow_mut();
        // The frames of one lane take effect in order: later operations see the result. A refusal is
        // reported by the next operation that waits.
        let ticket = client.update(&self.lease.table, &expression, &args)?;
        match on(Mutant::OperationsWait) {
            true => client.wait_applied(&ticket),
            false => Ok(()),
        }
    }

    /// Sets each element to the value of an expression of the program's own: `x`, `y` and `z` are the
    /// elements of `inputs`, `p0`... the parameters, `index` the element's index.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for vectors of another space, missing inputs or parameters; a deadline.
    pub fn map(
        &mut self,
        expression: &Expression<T>,
        inputs: &[&Self],
        parameters: &[f64],
    ) -> Result<(), ClientError> {
        self.same_space(inputs)?;
        if inputs.len() < expression.inputs() {
            return Err(ClientError::Argument {
                op: "map",
                table: self.space.name.clone(),
                what: format!(
                    "the expression has {} inputs and the call {}",
                    expression.inputs(),
                    inputs.len()
                ),
            });
        }
        let target = match Rc::strong_count(&self.lease) {
            1 => self.clone(),
            _ => Self::lease(&self.space)?,
        };
        let tables: Vec<&Table<T>> = inputs.iter().map(|input| &input.lease.table).collect();
        let args = FunctionArgs {
            inputs: &tables,
            parameters,
            range: None,
        };
        let mut client = self.space.client.borrow_mut();
        let _ticket = client.update(&target.lease.table, expression, &args)?;
        drop(client);
        *self = target;
        Ok(())
    }

    /// Combines the values of an expression over `inputs`, as [`Client::reduce`].
    pub(crate) fn combine(
        &self,
        text: &'static str,
        reduction: tidewater::Reduction,
        inputs: &[&Self],
    ) -> Result<f64, ClientError> {
        self.same_space(inputs)?;
        let expression = self.space.compiled(text)?;
        let tables: Vec<&Table<T>> = inputs.iter().map(|input| &input.lease.table).collect();
        let args = FunctionArgs {
            inputs: &tables,
            parameters: &[],
            range: None,
        };
        self.space.take_failure()?;
        let mut client = self.space.client.borrow_mut();
        let value = client.reduce(&self.lease.table, &expression, reduction, &args)?;
        // Operations before it are complete: a refused one makes the number worthless.
        client.flush()?;
        Ok(match value {
            Some(tidewater::Scalar::Float(value)) => value,
            Some(tidewater::Scalar::Integer(value)) => value as f64,
            None => unreachable!("a vector has at least one element"),
        })
    }

    fn same_space(&self, others: &[&Self]) -> Result<(), ClientError> {
        match others
            .iter()
            .find(|other| !Rc::ptr_eq(&other.space, &self.space))
        {
            None => Ok(()),
            Some(other) => Err(ClientError::Argument {
                op: "vector",
                table: self.space.name.clone(),
                what: format!(
                    "a vector of space \"{}\" does not lie where those of this one do; copy it by \
                     pull and store",
                    other.space.name
                ),
            }),
        }
    }

    /// Copies all elements to the program.
    ///
    /// # Errors
    /// A deadline; the failure of an earlier operation on the vector.
    pub fn pull(&self) -> Result<Vec<T>, ClientError> {
        let mut out = vec![T::default(); self.space.dim as usize];
        self.pull_into(0, &mut out)?;
        Ok(out)
    }

    /// Copies the elements from `first` on to `out`.
    ///
    /// # Errors
    /// As [`Vector::pull`]; [`ClientError::Argument`] for a range outside the vector.
    pub fn pull_into(&self, first: u64, out: &mut [T]) -> Result<(), ClientError> {
        self.space.take_failure()?;
        let mut client = self.space.client.borrow_mut();
        client.flush()?;
        client.pull_range(&self.lease.table, first, out, PullOptions::default())?;
        Ok(())
    }

    /// Replaces all elements. A clone of this vector keeps its own.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for another number of elements; a deadline.
    pub fn push(&mut self, values: &[T]) -> Result<(), ClientError> {
        self.space.check_len("push", values.len())?;
        if Rc::strong_count(&self.lease) == 1 {
            return self.store(values);
        }
        let other = Self::lease(&self.space)?;
        other.store(values)?;
        *self = other;
        Ok(())
    }

    fn store(&self, values: &[T]) -> Result<(), ClientError> {
        let mut client = self.space.client.borrow_mut();
        let _ticket = client.push_range(&self.lease.table, 0, values, PushOp::Assign)?;
        Ok(())
    }
}
