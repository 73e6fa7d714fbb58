//! Functions at the data from WebAssembly modules.
//!
//! [`Modules`] compiles a module into a [`WasmFunction`], which an applier runs like a function of the
//! server's program. Each call has an instance, fuel and a memory limit of its own; there are no imports,
//! and NaNs are canonical. A result depends on the input only, and a defect of a module is an error of its
//! caller. What a module exports and receives is in `docs/FUNCTIONS.md` and in [`call_record`].
//!
//! ```no_run
//! use tidewater_functions::{Functions, register};
//! use tidewater_wasm::{Limits, Modules};
//!
//! let modules = Modules::new(Limits::default())?;
//! let scale = modules.compile(&std::fs::read("scale.wasm")?)?;
//! register(Functions::default().with("scale", scale))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod call_record;
mod error;

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidewater_functions::{
    Elements, ElementsMut, FunctionFailure, FunctionLoader, NOT_PROVIDED, Piece, ServerFunction,
};
use tidewater_protocol::layout::function::FunctionProblem;
use wasmtime::{
    Config, Engine, ExternType, InstancePre, Linker, Memory, Module, ModuleExport, OperatorCost,
    ResourceLimiter, Store, ValType,
};

use call_record::Placed;
pub use error::ModuleError;
use error::{OverLimit, failure};

/// Bytes of a page of a module's memory.
const PAGE_BYTES: usize = 64 << 10;
/// Most bytes of a reduction's result: what a reply carries.
const RESULT_BYTES_MAX: usize = 64 << 10;
/// Bytes of stack of a call.
const STACK_BYTES: usize = 256 << 10;
/// Bytes of the stack that a call runs on, apart from the applier's: that of the module, and of the runtime below it.
const CALL_STACK_BYTES: usize = 512 << 10;
/// Fuel after which a call pauses, so that its applier can answer reads: 6 us of an endless loop. A lane that has been
/// empty is looked at in each fourth pause.
const FUEL_BETWEEN_PAUSES: u64 = 10_000;

/// Limits of a module and of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Fuel of a call on one piece. An instruction takes one unit, one that copies or fills one for each
    /// byte, and one that grows a memory 250 and as many for each page. The default is 6 ms
    /// of an endless loop, and 150 instructions for each element of the largest piece of f32.
    pub fuel: u64,
    /// Bytes of memory of a call, its piece included.
    pub memory_bytes: usize,
    /// Elements of a table of functions.
    pub table_elements: usize,
    /// Bytes of a module.
    pub module_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fuel: 10_000_000,
            memory_bytes: 16 << 20,
            table_elements: 4_096,
            module_bytes: 512 << 10,
        }
    }
}

/// Compiler of modules, with the limits of their calls. Clones share it.
#[derive(Clone)]
pub struct Modules {
    engine: Engine,
    limits: Limits,
}

impl std::fmt::Debug for Modules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut modules = f.debug_struct("Modules");
        modules
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Modules {
    /// Makes a compiler.
    ///
    /// # Errors
    /// [`ModuleError::Runtime`] where the host or a limit does not suit the runtime.
    pub fn new(limits: Limits) -> Result<Self, ModuleError> {
        let cost = OperatorCost {
            // Each is a call of the runtime, and of the system for new pages.
            MemoryGrow: 250,
            TableGrow: 250,
            ..OperatorCost::default()
        };
        let mut cost = cost;
        cost.variable.memory_grow_per_page = 250;
        let mut config = Config::new();
        config
            .consume_fuel(true)
            .operator_cost(cost)
            // Results have the same bits on every host.
            .cranelift_nan_canonicalization(true)
            .wasm_relaxed_simd(false)
            // The server's process keeps its signal handlers: bounds are checked by instructions.
            .signals_based_traps(false)
            // Reserved at once, so that a memory that grows is never copied.
            .memory_reservation(limits.memory_bytes as u64)
            .memory_reservation_for_growth(0)
            .memory_guard_size(0)
            .memory_may_move(false)
            .memory_init_cow(false)
            .max_wasm_stack(STACK_BYTES)
            .async_stack_size(CALL_STACK_BYTES)
            .wasm_memory64(false)
            .wasm_multi_memory(false)
            .wasm_backtrace_max_frames(None)
            .generate_address_map(false);
        let engine = Engine::new(&config).map_err(ModuleError::runtime)?;
        Ok(Self { engine, limits })
    }

    /// The limits of its modules.
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Compiles a module in binary format, and instantiates it once. Cost: about a millisecond for each
    /// KiB.
    ///
    /// # Errors
    /// [`ModuleError`]: it is too long, damaged, has imports, lacks an export, or does not start within
    /// the limits.
    pub fn compile(&self, module: &[u8]) -> Result<WasmFunction, ModuleError> {
        let (bytes, limit) = (module.len(), self.limits.module_bytes);
        if bytes > limit {
            return Err(ModuleError::TooLong { bytes, limit });
        }
        let module = Module::from_binary(&self.engine, module).map_err(ModuleError::invalid)?;
        if let Some(import) = module.imports().next() {
            return Err(ModuleError::Imports {
                module: import.module().to_owned(),
                name: import.name().to_owned(),
                count: module.imports().len(),
            });
        }
        let memory = module.get_export_index("memory");
        let is_memory = matches!(module.get_export("memory"), Some(ExternType::Memory(_)));
        let Some(memory) = memory.filter(|_| is_memory) else {
            return Err(ModuleError::NoMemory);
        };
        let (update, reduce) = (entry(&module, "update")?, entry(&module, "reduce")?);
        if update.is_none() && reduce.is_none() {
            return Err(ModuleError::NoFunction);
        }
        let instance = Linker::new(&self.engine).instantiate_pre(&module);
        let function = WasmFunction {
            instance: instance.map_err(ModuleError::runtime)?,
            memory,
            update,
            reduce,
            limits: self.limits,
        };
        match finish(function.instantiate(), &mut || ()) {
            Ok(_) => Ok(function),
            Err(failure) => Err(ModuleError::NotStarted(failure)),
        }
    }
}

impl FunctionLoader for Modules {
    fn load(&self, module: &[u8]) -> Result<Arc<dyn ServerFunction>, Box<dyn Error + Send + Sync>> {
        Ok(Arc::new(self.compile(module)?))
    }
}

/// The function of a module that takes the address of a call record; `None` if there is no such export.
fn entry(module: &Module, name: &'static str) -> Result<Option<ModuleExport>, ModuleError> {
    let wrong = |found: &ExternType| ModuleError::WrongType {
        name,
        found: format!("{found:?}"),
    };
    match module.get_export(name) {
        None => Ok(None),
        Some(ExternType::Func(found)) => {
            let takes = found.params().all(|of| matches!(of, ValType::I32));
            let returns = found.results().all(|of| matches!(of, ValType::I64));
            let numbers = (found.params().len(), found.results().len());
            match takes && returns && numbers == (1, 1) {
                true => Ok(module.get_export_index(name)),
                false => Err(wrong(&ExternType::Func(found))),
            }
        }
        Some(other) => Err(wrong(&other)),
    }
}

/// Function of a module.
#[derive(Clone)]
pub struct WasmFunction {
    instance: InstancePre<Limiter>,
    memory: ModuleExport,
    update: Option<ModuleExport>,
    reduce: Option<ModuleExport>,
    limits: Limits,
}

impl std::fmt::Debug for WasmFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WasmFunction")
            .field("update", &self.update.is_some())
            .field("reduce", &self.reduce.is_some())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Fails what grows over a limit, so that the caller gets the limit and not a trap of the module.
struct Limiter(Limits);

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        match desired <= self.0.memory_bytes {
            true => Ok(true),
            false => Err(OverLimit::Memory.into()),
        }
    }

    fn table_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        match desired <= self.0.table_elements {
            true => Ok(true),
            false => Err(OverLimit::Table.into()),
        }
    }
}

/// Instance of a module.
struct Instance {
    store: Store<Limiter>,
    instance: wasmtime::Instance,
    memory: Memory,
}

/// A call that has returned, with the memory that it left.
struct Ran {
    store: Store<Limiter>,
    memory: Memory,
    placed: Placed,
    returned: i64,
}

impl Ran {
    /// Bytes of its memory from `at` on.
    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        let bytes = self.memory.data(&self.store).get(at..at + len);
        bytes.unwrap_or_else(|| unreachable!("a memory does not shrink below {at} and {len}"))
    }
}

/// Runs a call to its end on this thread, and pauses whenever it yields.
fn finish<T>(call: impl Future<Output = T>, pause: &mut dyn FnMut()) -> T {
    let mut call = pin!(call);
    // Nothing else than fuel makes a call yield, and it can go on at once.
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match call.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done,
            Poll::Pending => pause(),
        }
    }
}

impl WasmFunction {
    /// A new instance with the fuel of a call, of which its start function takes a part.
    async fn instantiate(&self) -> Result<Instance, FunctionFailure> {
        let failed = |error: wasmtime::Error| failure(&error, &self.limits);
        let engine = self.instance.module().engine();
        let mut store = Store::new(engine, Limiter(self.limits));
        store.limiter(|limiter| limiter);
        store.set_fuel(self.limits.fuel).map_err(failed)?;
        store
            .fuel_async_yield_interval(Some(FUEL_BETWEEN_PAUSES))
            .map_err(failed)?;
        let instance = self.instance.instantiate_async(&mut store).await;
        let instance = instance.map_err(failed)?;
        let memory = instance.get_module_export(&mut store, &self.memory);
        let Some(memory) = memory.and_then(wasmtime::Extern::into_memory) else {
            unreachable!("the export was found when the module was compiled");
        };
        Ok(Instance {
            store,
            instance,
            memory,
        })
    }

    /// Runs an entry on a piece, with room for a result of `result_bytes`. Yields after
    /// [`FUEL_BETWEEN_PAUSES`] units of fuel.
    async fn run(
        &self,
        entry: Option<&ModuleExport>,
        arguments: &[u8],
        piece: &Piece<'_>,
        target: Elements<'_>,
        result_bytes: usize,
    ) -> Result<Ran, FunctionFailure> {
        let entry = entry.ok_or(FunctionFailure {
            problem: FunctionProblem::Refused,
            number: NOT_PROVIDED,
        })?;
        let Instance {
            mut store,
            instance,
            memory,
        } = self.instantiate().await?;
        let base = memory.data_size(&store);
        let placed = Placed::new(base, arguments, piece, target, result_bytes);
        let pages = (placed.end - base).div_ceil(PAGE_BYTES);
        // Fails for the limit of calls, and for the largest size that the module declares.
        memory.grow(&mut store, pages as u64).map_err(|_| {
            let declared = memory.ty(&store).maximum().unwrap_or(u64::MAX);
            let declared = declared.saturating_mul(PAGE_BYTES as u64);
            FunctionFailure {
                problem: FunctionProblem::OutOfMemory,
                number: declared.min(self.limits.memory_bytes as u64),
            }
        })?;
        placed.write(memory.data_mut(&mut store), arguments, piece, target);
        let failed = |error: wasmtime::Error| failure(&error, &self.limits);
        let entry = instance.get_module_export(&mut store, entry);
        let Some(entry) = entry.and_then(wasmtime::Extern::into_func) else {
            unreachable!("the export was found when the module was compiled");
        };
        let entry = entry.typed::<i32, i64>(&store).map_err(failed)?;
        let returned = entry.call_async(&mut store, placed.record as i32);
        Ok(Ran {
            returned: returned.await.map_err(failed)?,
            store,
            memory,
            placed,
        })
    }
}

impl ServerFunction for WasmFunction {
    fn update(
        &self,
        arguments: &[u8],
        piece: &Piece<'_>,
        mut target: ElementsMut<'_>,
        pause: &mut dyn FnMut(),
    ) -> Result<(), FunctionFailure> {
        let elements = target.as_elements();
        let entry = self.update.as_ref();
        let ran = finish(self.run(entry, arguments, piece, elements, 0), pause)?;
        if ran.returned != 0 {
            return Err(FunctionFailure {
                problem: FunctionProblem::Refused,
                number: ran.returned as u64,
            });
        }
        let bytes = target.as_mut_bytes();
        bytes.copy_from_slice(ran.bytes(ran.placed.target, bytes.len()));
        Ok(())
    }

    fn reduce(
        &self,
        arguments: &[u8],
        piece: &Piece<'_>,
        target: Elements<'_>,
        result: &mut Vec<u8>,
        pause: &mut dyn FnMut(),
    ) -> Result<(), FunctionFailure> {
        let entry = self.reduce.as_ref();
        let run = self.run(entry, arguments, piece, target, RESULT_BYTES_MAX);
        let ran = finish(run, pause)?;
        match usize::try_from(ran.returned) {
            Ok(len) if len <= RESULT_BYTES_MAX => {
                result.extend_from_slice(ran.bytes(ran.placed.result, len));
                Ok(())
            }
            Ok(len) => Err(FunctionFailure {
                problem: FunctionProblem::WrongResult,
                number: len as u64,
            }),
            Err(_) => Err(FunctionFailure {
                problem: FunctionProblem::Refused,
                number: ran.returned.unsigned_abs(),
            }),
        }
    }
}
