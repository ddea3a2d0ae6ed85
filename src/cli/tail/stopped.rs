//! A stopped gateway's log: the engine itself answers, over a look at the directory that changes nothing in it.
//!
//! Recovery runs as at a start, with its writes kept in memory; then the same engine that runs in a broker answers the same
//! question. So both kinds of `tail` see the same records, and there is one reader of the log.

use super::super::Failure;
use crate::admin::records;
use crate::engine::io::{AdminCommand, AdminReply, Input, Output, Outputs, ReadFrom, Severity};
use crate::engine::status::Status;
use crate::engine::{Engine, EngineStart};
use crate::log::memory::MemStateStore;
use crate::log::read::Reader;
use crate::log::recovery::{RecoveryContext, recover};
use crate::settings::Settings;
use crate::storage::ViewStore;
use crate::types::{BootId, LogId, Now, Ticket};
use std::path::Path;
use std::sync::Arc;

/// Steps that one answer may take: each is a read of the log, which passes over 4 MiB at most.
const STEPS_MAX: usize = 1 << 20;

/// An engine without a broker.
pub(super) struct Stopped {
    engine: Engine,
    store: ViewStore,
    reader: Reader,
    status: Box<Status>,
}

impl Stopped {
    /// Looks at a directory; with what a person should know about it.
    pub(super) fn open(mut settings: Settings, data_dir: &Path) -> Result<(Self, Vec<String>), Failure> {
        let log_dir = data_dir.join("log");
        if !log_dir.is_dir() {
            return Err(Failure::failed(format!(
                "{}: there is no log, and no broker runs on it; name the data directory of one with --config or --data-dir",
                data_dir.display()
            )));
        }
        let store = ViewStore::open(&log_dir).map_err(|error| Failure::failed(error.to_string()))?;
        let context = RecoveryContext { state_trusted: false, new_log_id: LogId::default(), salt_seed: 1 };
        let mut state = MemStateStore::new();
        let (recovered, _) =
            recover(&store, &mut state, &context).map_err(|error| Failure::failed(error.to_string()))?;
        let mut warnings: Vec<String> = recovered.report.damage.iter().map(ToString::to_string).collect();
        if recovered.report.more_damage > 0 {
            warnings.push(format!("and {} more places are damaged", recovered.report.more_damage));
        }
        // Nothing is forwarded here, and upstreams of another configuration must not be in the way.
        settings.upstreams.clear();
        for stream in &mut settings.streams {
            (stream.acks, stream.min_insync_replicas) = (crate::types::Acks::Synced, 1);
        }
        let start = EngineStart {
            settings: Arc::new(settings),
            recovered,
            gateway_id: String::new(),
            boot: BootId::default(),
            seed: 1,
            now: Now::default(),
        };
        let engine = Engine::new(start).map_err(Failure::failed)?;
        let mut stopped = Self { engine, store, reader: Reader::new(), status: Box::default() };
        if let AdminReply::Status(status) = stopped.ask(AdminCommand::Status)? {
            stopped.status = status;
        }
        Ok((stopped, warnings))
    }

    /// A page of records, as the API answers.
    pub(super) fn page(
        &mut self,
        stream: &str,
        partition: Option<u16>,
        from: ReadFrom,
        limit: usize,
    ) -> Result<Vec<u8>, Failure> {
        let command = AdminCommand::Records { stream: stream.to_owned(), partition, from, limit };
        match self.ask(command)? {
            AdminReply::Records { records, next } => {
                let page = records::page(&records, next, limit, stream, &self.status.gateway.log_id);
                page.map_err(|error| Failure::failed(error.to_string()))
            }
            AdminReply::Refused(reason) => Err(Failure::failed(reason)),
            AdminReply::Status(_) | AdminReply::Done => Err(Failure::failed("the log gave another answer")),
        }
    }

    /// Steps the engine until it answers.
    fn ask(&mut self, command: AdminCommand) -> Result<AdminReply, Failure> {
        let ticket = Ticket(u64::MAX);
        let mut out = Outputs::new();
        self.engine.step(Now::default(), Input::Admin { ticket, command }, &mut out);
        for _ in 0..STEPS_MAX {
            if out.is_empty() {
                break;
            }
            for output in std::mem::take(&mut out) {
                match output {
                    Output::Reply { ticket: answered, body } if answered == ticket => return Ok(body),
                    Output::Read { ticket, request } => {
                        let result = self.reader.read(&self.store, &request);
                        self.engine.step(Now::default(), Input::Read { ticket, result }, &mut out);
                    }
                    Output::Event(event) if matches!(event.severity, Severity::Error | Severity::Warning) => {
                        eprintln!("forebay: {}", event.text);
                    }
                    _ => {}
                }
            }
            self.engine.finish_turn(Now::default(), &mut out);
        }
        Err(Failure::failed("the log does not answer; it may be damaged"))
    }
}
