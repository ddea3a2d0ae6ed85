//! The other side of `run`: signals, and what systemd is told (READY, STATUS, WATCHDOG, STOPPING).

use async_signal::{Signal, Signals};
use sd_notify::NotifyState;
use smol::Timer;
use smol::stream::StreamExt;
use std::net::SocketAddr;
use std::time::Duration;

/// Where there is no watchdog: nothing to do between signals.
const NO_WATCHDOG: Duration = Duration::from_secs(3600);

fn tell(states: &[NotifyState<'_>]) {
    // Without systemd there is nobody to tell, which is not an error.
    if let Err(error) = sd_notify::notify(states) {
        ::log::debug!(target: "broker", "systemd cannot be told: {error}");
    }
}

/// Everything is open and runs.
pub(super) fn ready(addresses: &[SocketAddr]) {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    tell(&[NotifyState::Ready, NotifyState::Status(&format!("MQTT on {}", addresses.join(", ")))]);
}

/// The orderly stop begins.
pub(super) fn stopping(signal: Option<Signal>) {
    if let Some(signal) = signal {
        ::log::info!(target: "broker", "SIG{}: stopping", format!("{signal:?}").to_uppercase());
    }
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// Waits for a signal. Meanwhile feeds the watchdog, as long as `turns` grows: an engine that stands still, or an I/O thread that
/// waits for ever, gets the process restarted.
pub(super) async fn until_signal(mut signals: Signals, turns: impl Fn() -> u64) -> Option<Signal> {
    let period = sd_notify::watchdog_enabled().map_or(NO_WATCHDOG, |limit| limit / 3);
    let mut seen = 0;
    loop {
        let signal = async { Some(signals.next().await) };
        let timer = async {
            Timer::after(period).await;
            None
        };
        match smol::future::or(signal, timer).await {
            Some(Some(Ok(Signal::Hup))) => {
                ::log::warn!(target: "broker", "SIGHUP: this version reads its configuration at the start only; restart it");
            }
            Some(signal) => return signal.and_then(Result::ok),
            None => {}
        }
        let now = turns();
        if now != seen {
            seen = now;
            tell(&[NotifyState::Watchdog]);
        }
    }
}
