//! The whole tree becomes [`Settings`], and what has to fit together is compared.

use super::forms::log_filter;
use super::reader::{Field, Findings, Reader, Unset};
use super::sections::{self, Device, Listener, loopback};
use super::streams::{self, Stream};
use super::units::size;
use super::upstreams::{self, Upstream};
use crate::limits::BUDGET_SEGMENTS_MIN;
use crate::settings::{self, Settings};
use crate::types::Acks;

/// Reads everything. Where something is wrong it is in the reader's findings, and the value is a stand-in.
pub(super) fn read(mut root: Reader<'_>, profile: String, cores: usize) -> Settings {
    root.skip("profile");
    let log = root.get("log", Unset::Default("\"info\""), log_filter);
    let gateway = sections::gateway(&mut root);
    let device = sections::device(&mut root, cores);
    let listeners = sections::listeners(&mut root, &device);
    let admin = sections::admin(&mut root);
    let open = listeners.iter().find(|listener| listener.bind.value.is_some_and(|bind| !loopback(&bind)));
    let auth = sections::auth(&mut root, open.map(|listener| &listener.bind));
    let streams = streams::streams(&mut root);
    let upstreams = upstreams::upstreams(&mut root, &streams);
    sizes(root.findings, &gateway.disk_budget, &device, &listeners);
    addresses(root.findings, &listeners, &admin);
    for stream in &streams {
        levels(root.findings, stream, &upstreams);
    }
    root.finish();
    Settings {
        profile,
        log: log.or(String::new()),
        gateway: settings::Gateway {
            id: gateway.id.value,
            data_dir: gateway.data_dir.or(String::new()).into(),
            disk_budget: gateway.disk_budget.or(0),
            ack_timeout_ns: gateway.ack_timeout.or(0),
        },
        device: settings::Device {
            memory_budget: device.memory_budget.or(0),
            io_threads: device.io_threads.or(1),
            segment_size: device.segment_size.or(0),
            commit_interval_ns: device.commit_interval.or(0),
            commit_bytes: device.commit_bytes.or(0),
            state_cache: device.state_cache.or(0),
            max_connections: count(device.max_connections.or(1)),
            max_inflight: device.max_inflight.or(1),
            max_packet_size: packet(device.max_packet_size.or(0)),
            write_endurance: device.write_endurance.or(0),
        },
        listeners: listeners.into_iter().filter_map(listener).collect(),
        admin: admin.bind.value.flatten().map(|bind| settings::Admin { bind, token_file: admin.token_file.value }),
        auth,
        streams: streams.into_iter().map(Stream::settings).collect(),
        upstreams: upstreams.into_iter().map(Upstream::settings).collect(),
    }
}

fn listener(read: Listener) -> Option<settings::Listener> {
    Some(settings::Listener {
        bind: read.bind.value?,
        max_connections: count(read.max_connections.or(1)),
        max_packet_size: packet(read.max_packet_size.or(0)),
        max_inflight: read.max_inflight.or(1),
        rate: None,
    })
}

fn count(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The form has checked the range.
fn packet(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Points at the value that somebody wrote: the one that is wrong, or the one that it does not fit.
fn blame<'a, A, B>(wrong: &'a Field<A>, other: &'a Field<B>) -> (&'a super::tree::Place, &'a str) {
    match wrong.given || !other.given {
        true => (&wrong.place, &wrong.path),
        false => (&other.place, &other.path),
    }
}

/// Budget, segments, packets and memory.
fn sizes(findings: &mut Findings, budget: &Field<u64>, device: &Device, listeners: &[Listener]) {
    let segment = &device.segment_size;
    if let (Some(bytes), Some(one)) = (budget.value, segment.value)
        && bytes < one.saturating_mul(BUDGET_SEGMENTS_MIN)
    {
        let least = size(one.saturating_mul(BUDGET_SEGMENTS_MIN));
        let (place, path) = blame(budget, segment);
        let message = format!(
            "expected gateway.disk_budget of at least {BUDGET_SEGMENTS_MIN} segments of {}, that is {least:?}, found {:?}",
            size(one),
            size(bytes)
        );
        findings.error(place, path, message);
    }
    let own = listeners.iter().map(|listener| &listener.max_packet_size).filter(|field| field.given);
    for packet in std::iter::once(&device.max_packet_size).chain(own) {
        for (what, share, whole) in
            [("of device.segment_size", 4, segment), ("of device.memory_budget", 4, &device.memory_budget)]
        {
            if let (Some(bytes), Some(all)) = (packet.value, whole.value)
                && bytes > all / share
            {
                let (place, path) = blame(packet, whole);
                let message = format!(
                    "expected max_packet_size of at most a quarter {what} ({}), that is {:?}, found {:?}",
                    size(all),
                    size(all / share),
                    size(bytes)
                );
                findings.error(place, path, message);
            }
        }
    }
    if let (Some(cache), Some(memory)) = (device.state_cache.value, device.memory_budget.value)
        && cache > memory
    {
        let (place, path) = blame(&device.state_cache, &device.memory_budget);
        let message =
            format!("expected state_cache of at most memory_budget ({:?}), found {:?}", size(memory), size(cache));
        findings.error(place, path, message);
    }
    for listener in listeners.iter().filter(|listener| listener.max_connections.given) {
        if let (Some(own), Some(all)) = (listener.max_connections.value, device.max_connections.value)
            && own > all
        {
            let field = &listener.max_connections;
            let message = format!("expected at most device.max_connections ({all}), found {own}");
            findings.error(&field.place, &field.path, message);
        }
    }
}

/// Addresses that are taken twice, and an admin port that others can reach.
fn addresses(findings: &mut Findings, listeners: &[Listener], admin: &sections::Admin) {
    for (index, listener) in listeners.iter().enumerate() {
        let Some(bind) = listener.bind.value.filter(|bind| bind.port() != 0) else { continue };
        if let Some(earlier) = listeners.iter().take(index).find(|earlier| earlier.bind.value == Some(bind)) {
            let message = format!("expected an address of its own, found that of {} again", earlier.bind.path);
            findings.error(&listener.bind.place, &listener.bind.path, message);
        }
    }
    let Some(Some(bind)) = admin.bind.value else { return };
    let taken = |listener: &&Listener| bind.port() != 0 && listener.bind.value == Some(bind);
    if let Some(listener) = listeners.iter().find(taken) {
        let message = format!("expected an address of its own, found that of {} again", listener.bind.path);
        findings.error(&admin.bind.place, &admin.bind.path, message);
    }
    if !loopback(&bind) && !admin.token_file.given {
        let message =
            format!("others than this host can reach the address {bind}: set admin.token_file, or listen on 127.0.0.1");
        findings.error(&admin.bind.place, &admin.bind.path, message);
    }
}

/// Levels of acknowledgement against the replicas that there are.
fn levels(findings: &mut Findings, stream: &Stream, upstreams: &[Upstream]) {
    let Some(name) = stream.name.value.as_deref() else { return };
    let replicas = upstreams.iter().filter(|upstream| upstream.replicates(name)).count();
    for field in [&stream.acks, &stream.acks_min] {
        if field.value == Some(Acks::Replicated) {
            if replicas == 0 {
                let message =
                    format!("-1 needs a replica: an [[upstream]] with replica = true and {name:?} in its streams");
                findings.error(&field.place, &field.path, message);
            }
            if stream.min_insync_replicas.value.is_some_and(|least| least < 2) {
                let message = "-1 needs min_insync_replicas of at least 2, the local log and a replica";
                findings.error(&field.place, &field.path, message);
            }
        }
    }
    let least = &stream.min_insync_replicas;
    if let Some(number) = least.value
        && usize::from(number) > replicas + 1
    {
        let message = format!(
            "expected at most {}, the local log and the upstreams with replica = true that carry {name:?}, found {number}",
            replicas + 1
        );
        findings.error(&least.place, &least.path, message);
    }
}
