//! Sparse vectors: only the elements that were written are stored, each as a row of a sparse table.

use std::rc::Rc;

use tidewater::{
    Client, ClientError, FunctionArgs, Missing, PullOptions, Reduction, Scalar, ScanCursor, Table,
    TableBuilder,
};
use tidewater_protocol::table::{Optimizer, PushOp};

use crate::float::Float;
use crate::space::{Vector, VectorSpace};

/// Elements of a vector that travel at once.
const PAGE: usize = 4096;

/// Vector of a space of which only some elements are stored; all others are 0. It has the operations of [`Vector`] that
/// keep zeros. A method that changes it returns when the servers have applied the change.
///
/// It is a sparse table, `SPACE/sparse/NAME`. It stays until [`SparseVector::release`]; dropping the handle frees
/// nothing. Use it from one program at a time: operations of two vectors read one while they change the other.
///
/// # Example
/// ```
/// # use tidewater::{ClientError, JoinOptions, SyncMode};
/// # use tidewater_vectors::VectorSpace;
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(2, 1).join()?.into_job().expect("a worker");
/// # let client = job.client_of(0, SyncMode::Asp)?;
/// let space = VectorSpace::<f64>::new(client, "s", 1 << 40)?;
/// let x = space.sparse_from_pairs("x", &[7, 1 << 39], &[3.0, 4.0])?;
/// let mut y = space.sparse_from_pairs("y", &[7], &[1.0])?;
/// y.axpy(2.0, &x)?; // y += 2 x
/// assert_eq!(y.pairs()?, [(7, 7.0), (1 << 39, 8.0)]);
/// assert_eq!((x.nrm2()?, x.dot(&y)?, y.nnz()?), (5.0, 53.0, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SparseVector<T> {
    space: VectorSpace<T>,
    table: Table<T>,
    name: String,
}

impl<T: Float> VectorSpace<T> {
    /// The sparse vector of a name: a new one of zeros, or the one that exists, with its elements.
    ///
    /// # Errors
    /// The coordinator's refusal when a table of that name has another definition; a deadline.
    pub fn sparse(&self, name: &str) -> Result<SparseVector<T>, ClientError> {
        let name = format!("{}/sparse/{name}", self.name());
        let spec = TableBuilder::sparse::<T>(&name, 1)
            .optimizer(Optimizer::None)
            .finite_check(false)
            .partitions(self.partitions());
        let table = self.client().create_table(spec.spec())?;
        Ok(SparseVector {
            space: self.clone(),
            table,
            name,
        })
    }

    /// The sparse vector of a name with these pairs of index and value added, see [`SparseVector::add_pairs`].
    ///
    /// # Errors
    /// As [`VectorSpace::sparse`] and [`SparseVector::add_pairs`].
    pub fn sparse_from_pairs(
        &self,
        name: &str,
        indices: &[u64],
        values: &[T],
    ) -> Result<SparseVector<T>, ClientError> {
        let mut vector = self.sparse(name)?;
        vector.add_pairs(indices, values)?;
        Ok(vector)
    }
}

impl<T: Float> SparseVector<T> {
    /// Number of elements, stored or not: that of the space.
    pub fn dim(&self) -> u64 {
        self.space.dim()
    }

    /// The table with the stored elements; its keys are their indices.
    pub fn table(&self) -> Table<T> {
        self.table
    }

    /// Adds values to elements; pairs of one index add up.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for slices of different lengths or an index from [`SparseVector::dim`] on: nothing was
    /// sent then. A deadline, or a server's refusal.
    pub fn add_pairs(&mut self, indices: &[u64], values: &[T]) -> Result<(), ClientError> {
        self.write("add_pairs", indices, values, PushOp::Sum)
    }

    /// Replaces elements; of pairs of one index the last one counts.
    ///
    /// # Errors
    /// As [`SparseVector::add_pairs`].
    pub fn set_pairs(&mut self, indices: &[u64], values: &[T]) -> Result<(), ClientError> {
        self.write("set_pairs", indices, values, PushOp::Assign)
    }

    fn write(
        &self,
        op: &'static str,
        indices: &[u64],
        values: &[T],
        how: PushOp,
    ) -> Result<(), ClientError> {
        self.check_indices(op, indices)?;
        if indices.len() != values.len() {
            let what = format!("{} indices and {} values", indices.len(), values.len());
            return Err(self.wrong(op, what));
        }
        let mut client = self.space.client();
        let ticket = client.push_rows(&self.table, indices, values, how)?;
        client.wait_applied(&ticket)
    }

    fn check_indices(&self, op: &'static str, indices: &[u64]) -> Result<(), ClientError> {
        let dim = self.dim();
        match indices.iter().find(|&&index| index >= dim) {
            None => Ok(()),
            Some(index) => {
                let what = format!("index {index} of a vector of {dim} elements");
                Err(self.wrong(op, what))
            }
        }
    }

    fn wrong(&self, op: &'static str, what: String) -> ClientError {
        ClientError::Argument {
            op,
            table: self.name.clone(),
            what,
        }
    }

    /// Copies single elements to the program, in the order of `indices`, which may repeat. Stores nothing.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for an index outside the vector; a deadline.
    pub fn pull_at(&self, indices: &[u64]) -> Result<Vec<T>, ClientError> {
        self.check_indices("pull_at", indices)?;
        let mut values = vec![T::default(); indices.len()];
        self.pull_rows(&mut self.space.client(), indices, &mut values)?;
        Ok(values)
    }

    fn pull_rows(
        &self,
        client: &mut Client,
        indices: &[u64],
        values: &mut [T],
    ) -> Result<(), ClientError> {
        let options = PullOptions::default().missing(Missing::Initial);
        client.pull_rows(&self.table, indices, values, options)?;
        Ok(())
    }

    /// Calls `each` with the indices and values of all stored elements, up to [`PAGE`] at a time, in no order.
    fn pages(
        &self,
        mut each: impl FnMut(&mut Client, &[u64], &mut [T]) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let mut client = self.space.client();
        let (mut indices, mut values) = (vec![0; PAGE], vec![T::default(); PAGE]);
        let mut cursor = ScanCursor::default();
        loop {
            let n = client.scan_rows(&self.table, &mut cursor, &mut indices, &mut values)?;
            if n == 0 {
                return Ok(());
            }
            each(&mut client, &indices[..n], &mut values[..n])?;
        }
    }

    /// Copies all stored elements to the program, in the order of their indices. A stored element may be 0.
    ///
    /// # Errors
    /// A deadline.
    pub fn pairs(&self) -> Result<Vec<(u64, T)>, ClientError> {
        let mut pairs = Vec::new();
        self.pages(|_, indices, values| {
            pairs.extend(indices.iter().copied().zip(values.iter().copied()));
            Ok(())
        })?;
        pairs.sort_unstable_by_key(|&(index, _)| index);
        Ok(pairs)
    }

    /// Number of stored elements, those that are 0 included.
    ///
    /// # Errors
    /// A deadline.
    pub fn stored(&self) -> Result<u64, ClientError> {
        self.space.client().count_keys(&self.table)
    }

    /// Multiplies all elements by a number, at the servers.
    ///
    /// # Errors
    /// A deadline.
    pub fn scale_assign(&mut self, factor: T) -> Result<(), ClientError> {
        let expression = self.space.inner.compiled("p0 * x")?;
        let args = FunctionArgs {
            parameters: &[factor.into()],
            ..FunctionArgs::default()
        };
        let mut client = self.space.client();
        let ticket = client.update(&self.table, &expression, &args)?;
        client.wait_applied(&ticket)
    }

    /// Adds a multiple of another vector: `self += factor x`. Each product and each sum is rounded in the element type.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a vector of another space. After a deadline some elements may be changed.
    ///
    /// # Cost
    /// The stored elements of `x` travel to the program and back.
    pub fn axpy(&mut self, factor: T, x: &Self) -> Result<(), ClientError> {
        self.same_space("axpy", &x.space)?;
        let factor: f64 = factor.into();
        x.pages(|client, indices, values| {
            for value in values.iter_mut() {
                // An f32 product is exact in f64: it is rounded once.
                *value = T::nearest(factor * wide(*value));
            }
            let ticket = client.push_rows(&self.table, indices, values, PushOp::Sum)?;
            client.wait_applied(&ticket)
        })
    }

    /// Inner product, in f64, added in the order of the indices: the same bits on any number of servers. Elements that
    /// only one of the vectors stores count as products with 0 or not at all: with an infinite or NaN one of these the
    /// result is not defined.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a vector of another space; a deadline.
    ///
    /// # Cost
    /// The stored elements of the vector that has fewer, and those of equal index, travel to the program, which holds
    /// 16 bytes for each.
    pub fn dot(&self, other: &Self) -> Result<f64, ClientError> {
        self.same_space("dot", &other.space)?;
        let (few, many) = match self.stored()? <= other.stored()? {
            true => (self, other),
            false => (other, self),
        };
        let (mut products, mut theirs) = (Vec::new(), vec![T::default(); PAGE]);
        few.pages(|client, indices, values| {
            let theirs = &mut theirs[..indices.len()];
            many.pull_rows(client, indices, theirs)?;
            let pairs = values.iter().zip(theirs.iter());
            let product = pairs.map(|(&a, &b)| wide(a) * wide(b));
            products.extend(indices.iter().copied().zip(product));
            Ok(())
        })?;
        products.sort_unstable_by_key(|&(index, _)| index);
        Ok(products.iter().map(|(_, product)| product).sum())
    }

    /// Inner product with a dense vector of the space, as [`SparseVector::dot`].
    ///
    /// # Errors
    /// As [`SparseVector::dot`], and as [`Vector::pull_at`]; it has the cost of that.
    pub fn dot_dense(&self, other: &Vector<T>) -> Result<f64, ClientError> {
        self.same_space("dot_dense", &other.space())?;
        let (indices, values): (Vec<u64>, Vec<T>) = self.pairs()?.into_iter().unzip();
        let theirs = other.pull_at(&indices)?;
        let pairs = values.into_iter().zip(theirs);
        Ok(pairs.map(|(a, b)| wide(a) * wide(b)).sum())
    }

    /// Sum of the elements, at the servers.
    ///
    /// # Errors
    /// A deadline.
    pub fn sum(&self) -> Result<f64, ClientError> {
        self.reduced("x", Reduction::Sum)
    }

    /// Sum of the absolute values: the norm L1.
    ///
    /// # Errors
    /// A deadline.
    pub fn asum(&self) -> Result<f64, ClientError> {
        self.reduced("abs(x)", Reduction::Sum)
    }

    /// Euclidean norm. Squares are rounded in the element type: in f32 they overflow above 1.8e19.
    ///
    /// # Errors
    /// A deadline.
    pub fn nrm2(&self) -> Result<f64, ClientError> {
        Ok(self.reduced("x * x", Reduction::Sum)?.sqrt())
    }

    /// Largest absolute value: the norm L-infinity; 0 of a vector without stored elements.
    ///
    /// # Errors
    /// A deadline.
    pub fn amax(&self) -> Result<f64, ClientError> {
        self.reduced("abs(x)", Reduction::Max)
    }

    /// Number of elements that are not 0.
    ///
    /// # Errors
    /// A deadline.
    pub fn nnz(&self) -> Result<u64, ClientError> {
        let count = self.reduced("if(x != 0, 1, 0)", Reduction::Sum)?;
        // A sum of ones: an integer, and exact below 2^53.
        Ok(count as u64)
    }

    /// Combines the values of an expression over the stored elements; 0 of none.
    fn reduced(&self, text: &'static str, reduction: Reduction) -> Result<f64, ClientError> {
        let expression = self.space.inner.compiled(text)?;
        let args = FunctionArgs::default();
        let mut client = self.space.client();
        let value = client.reduce(&self.table, &expression, reduction, &args)?;
        Ok(match value {
            Some(Scalar::Float(value)) => value,
            Some(Scalar::Integer(value)) => value as f64,
            None => 0.0,
        })
    }

    fn same_space(&self, op: &'static str, other: &VectorSpace<T>) -> Result<(), ClientError> {
        if Rc::ptr_eq(&self.space.inner, &other.inner) {
            return Ok(());
        }
        let what = format!(
            "a vector of space \"{}\" has another client or dimension; copy it by pairs and add_pairs",
            other.name()
        );
        Err(self.wrong(op, what))
    }

    /// Frees the vector on all servers.
    ///
    /// # Errors
    /// The coordinator's refusal, or a deadline.
    pub fn release(self) -> Result<(), ClientError> {
        self.space.client().release_table(self.table)
    }
}

fn wide<T: Float>(value: T) -> f64 {
    value.into()
}
