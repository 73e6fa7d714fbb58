//! Options for functions from WebAssembly modules.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tidewater_protocol::layout::function::FUNCTION_NAME_BYTES_MAX;
use tidewater_service::server::ServerFunctions;

use super::roles::complain;

/// A name with the file of its module.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamedModule {
    name: String,
    file: PathBuf,
}

/// Options of every command that starts servers.
#[derive(Debug, Clone, Args)]
pub(super) struct ModuleArgs {
    /// Function for all jobs from a WebAssembly module: its name, and a file that every server reads. May
    /// be repeated. Needs a program built with the feature `wasm`.
    #[arg(long, value_name = "NAME=FILE", value_parser = parse_named)]
    function: Vec<NamedModule>,
    /// Let clients load functions from WebAssembly modules, for their own job.
    #[arg(long)]
    load_functions: bool,
    /// Fuel of a module's call on one piece of a table, about one unit an instruction [default: 10000000,
    /// 6 ms of an endless loop].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    function_fuel: Option<u64>,
    /// Bytes of memory of a module's call, its piece included [default: 16777216].
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(65_536..))]
    function_memory: Option<u32>,
}

impl ModuleArgs {
    /// The same options for the command line of a server.
    pub(super) fn passed_on(&self) -> impl Iterator<Item = String> {
        let named = |NamedModule { name, file }: &NamedModule| {
            format!("--function={name}={}", file.display())
        };
        let load = self.load_functions.then(|| "--load-functions".to_owned());
        let fuel = self.function_fuel.map(|n| format!("--function-fuel={n}"));
        let memory = self.function_memory;
        let memory = memory.map(|bytes| format!("--function-memory={bytes}"));
        let modules = self.function.iter().map(named);
        modules.chain(load).chain(fuel).chain(memory)
    }

    /// Reads and compiles the modules.
    #[cfg(feature = "wasm")]
    pub(super) fn functions(&self) -> Result<ServerFunctions, ExitCode> {
        use tidewater_wasm::{Limits, Modules};
        let mut functions = ServerFunctions::default();
        if self.function.is_empty() && !self.load_functions {
            return Ok(functions);
        }
        let usual = Limits::default();
        let memory = self.function_memory.map(|bytes| bytes as usize);
        let modules = Modules::new(Limits {
            fuel: self.function_fuel.unwrap_or(usual.fuel),
            memory_bytes: memory.unwrap_or(usual.memory_bytes),
            ..usual
        });
        let modules = modules.map_err(|error| complain(3, error))?;
        for NamedModule { name, file } in &self.function {
            let why = |error: &dyn std::fmt::Display| {
                complain(
                    5,
                    format_args!("function {name}: {}: {error}", file.display()),
                )
            };
            let module = std::fs::read(file).map_err(|error| why(&error))?;
            let function = modules.compile(&module).map_err(|error| why(&error))?;
            functions.all = functions.all.with(name, function);
        }
        if self.load_functions {
            functions.loader = Some(std::sync::Arc::new(modules));
        }
        Ok(functions)
    }

    /// Refuses modules: there is no compiler of them in this program.
    #[cfg(not(feature = "wasm"))]
    pub(super) fn functions(&self) -> Result<ServerFunctions, ExitCode> {
        if self.function.is_empty() && !self.load_functions {
            return Ok(ServerFunctions::default());
        }
        Err(complain(
            3,
            "this program was built without WebAssembly: build the crate tidewater-cli with --features wasm, \
             or start servers without --function and --load-functions",
        ))
    }
}

/// Parses the value of `--function`: NAME=FILE.
fn parse_named(text: &str) -> Result<NamedModule, String> {
    let (name, file) = text
        .split_once('=')
        .filter(|(_, file)| !file.is_empty())
        .ok_or("write a name, = and a file, as in scale=scale.wasm")?;
    if !(1..=FUNCTION_NAME_BYTES_MAX).contains(&name.len()) {
        return Err(format!(
            "a name has 1 to {FUNCTION_NAME_BYTES_MAX} bytes, not {}",
            name.len()
        ));
    }
    Ok(NamedModule {
        name: name.to_owned(),
        file: file.into(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        modules: ModuleArgs,
    }

    #[test]
    fn options_pass_on_unchanged() {
        let options = [
            "--function=scale=a=b.wasm",
            "--function=x=/y z",
            "--load-functions",
            "--function-fuel=7",
            "--function-memory=65536",
        ];
        let given = Program::try_parse_from(["p"].into_iter().chain(options)).unwrap();
        assert_eq!(given.modules.passed_on().collect::<Vec<_>>(), options);
        let none = Program::try_parse_from(["p"]).unwrap();
        assert_eq!(none.modules.passed_on().count(), 0);
        for wrong in ["scale", "=file", "scale=", "--"] {
            assert!(parse_named(wrong).is_err(), "{wrong}");
        }
    }
}
