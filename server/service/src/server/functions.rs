//! Loading of functions by clients.

use std::sync::Arc;

use tidewater_engine::apply::command::Command;
use tidewater_functions::registered;
use tidewater_protocol::limits::FUNCTIONS_LOADED_MAX;
use tidewater_runtime::sync::Ordering;

use super::{ServerError, ServerHandle};
use tidewater_engine::store::StoreError;

impl ServerHandle {
    /// Loads a function from a module on all appliers, for one job; blocks until they have it. Opens the job if
    /// it is new. The name keeps this module until the job ends: loading the same module again changes nothing,
    /// another one is refused. Cost: the module is compiled on the calling thread.
    ///
    /// # Errors
    /// [`ServerError::Function`] where the server loads no functions, the name is taken, or the module is
    /// refused, or the job ends meanwhile; [`ServerError::Store`] for a function or job too many. No applier
    /// has it then. [`ServerError::Gone`] or [`ServerError::Failed`]: an applier has ended, and others may have
    /// it.
    pub fn load_function(
        &self,
        namespace: &str,
        name: &str,
        module: &[u8],
    ) -> Result<(), ServerError> {
        let refused = |why: String| ServerError::Function {
            name: name.to_owned(),
            why,
        };
        let functions = &self.shared.config.functions;
        let Some(loader) = &functions.loader else {
            let why = "servers load no functions of clients; start them with --load-functions";
            return Err(refused(why.to_owned()));
        };
        if functions.all.find(name).is_some() || registered().find(name).is_some() {
            let why = "the servers have a function of this name; use another name";
            return Err(refused(why.to_owned()));
        }
        let (job, has_ended) = {
            let mut catalogue = self.shared.catalogue();
            let job = catalogue.open_job(namespace)?;
            if let Some(have) = job.functions.get(name) {
                return match **have == *module {
                    true => Ok(()),
                    false => Err(refused(
                        "the job has another module of this name; use another name".to_owned(),
                    )),
                };
            }
            let have = job.functions.len() + 1;
            if have > FUNCTIONS_LOADED_MAX {
                return Err(ServerError::Store(StoreError::Limit {
                    what: "loaded functions of a job",
                    have: have as u64,
                    limit: FUNCTIONS_LOADED_MAX as u64,
                }));
            }
            (job.id, Arc::clone(&job.has_ended))
        };
        let function = loader.load(module).map_err(|e| refused(e.to_string()))?;
        let over = || refused("its job has ended meanwhile; load it in the next one".to_owned());
        // Entered first: a failure of the next step is the end of this server.
        match self.shared.catalogue().job_mut(namespace) {
            // The next job of this name has another number.
            Some(open) if open.id == job => {
                open.functions.insert(name.to_owned(), module.into());
            }
            _ => return Err(over()),
        }
        let loaded = self.shared.ask_all(|_, tx| {
            let (function, name) = (Arc::clone(&function), name.to_owned());
            let has_ended = Arc::clone(&has_ended);
            Command::With(Box::new(move |engine| {
                // SYNC: job-ended, with the store in `Catalogue::end_job`. The store comes before the
                // applier's command `EndJob`, which removes the job's functions: after that command
                // this one finds it.
                if !has_ended.load(Ordering::Acquire) {
                    engine.load_function(job, &name, function);
                }
                // The caller waits for it, unless the server is ending.
                let _ = tx.send(());
            }))
        });
        loaded?;
        match has_ended.load(Ordering::Acquire) {
            true => Err(over()),
            false => Ok(()),
        }
    }
}
