//! A client of QEMU's monitor (QMP): JSON objects, one a line, on a UNIX socket.
//!
//! Every wait has a deadline. Events that arrive while something else is awaited are kept, in a bounded
//! number, until somebody waits for them.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

/// A connection to QEMU's monitor that has been greeted.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    received: Vec<u8>,
    events: VecDeque<Value>,
    patience: Duration,
}

impl Qmp {
    /// Connects to the socket that `--qmp` or QEMU's own `-qmp unix:PATH,server=on` made. No wait of this
    /// client takes longer than `patience`.
    pub fn connect(socket: &Path, patience: Duration) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to QEMU's monitor at {}", socket.display()))?;
        Self::over(stream, patience)
    }

    /// Speaks on a stream that is connected to a monitor: waits for the greeting and enters command mode.
    pub fn over(stream: UnixStream, patience: Duration) -> Result<Self> {
        stream.set_write_timeout(Some(patience))?;
        let mut qmp = Self { stream, received: Vec::new(), events: VecDeque::new(), patience };
        let deadline = Instant::now() + patience;
        while qmp.message(deadline).context("QEMU's monitor did not greet")?.get("QMP").is_none() {}
        qmp.execute("qmp_capabilities", Value::Null)?;
        Ok(qmp)
    }

    /// Executes a command and gives what it returns. `arguments` is an object, or null for none.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let mut request = json!({"execute": command});
        if !arguments.is_null() {
            request["arguments"] = arguments;
        }
        let mut line = serde_json::to_vec(&request)?;
        line.push(b'\n');
        self.stream.write_all(&line).with_context(|| format!("QEMU does not take the command {command}"))?;
        let deadline = Instant::now() + self.patience;
        loop {
            let mut answer =
                self.message(deadline).with_context(|| format!("QEMU did not answer {command}"))?;
            if let Some(error) = answer.get("error") {
                let description = error.get("desc").and_then(Value::as_str).unwrap_or("for no stated reason");
                bail!("QEMU refused {command}: {description}");
            }
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
        }
    }

    /// Waits for an event of this name whose data satisfies `is_it`, and gives its data. Events that came
    /// before the call count.
    pub fn event(&mut self, name: &str, is_it: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + self.patience;
        loop {
            let wanted = |event: &Value| event["event"] == name && is_it(&event["data"]);
            if let Some(found) = self.events.iter().position(wanted) {
                let mut event = self.events.remove(found).ok_or_else(|| anyhow!("an event vanished"))?;
                return Ok(event["data"].take());
            }
            self.message(deadline).with_context(|| format!("QEMU did not report {name}"))?;
        }
    }

    /// The counters of every block device, as QEMU gives them.
    pub fn query_blockstats(&mut self) -> Result<Value> {
        self.execute("query-blockstats", Value::Null)
    }

    /// Asks the guest to give a device up and waits until it is gone.
    pub fn device_del(&mut self, id: &str) -> Result<()> {
        self.execute("device_del", json!({"id": id}))?;
        self.event("DEVICE_DELETED", |data| data["device"] == id)?;
        Ok(())
    }

    /// Adds a device: an object with `driver`, `id`, `bus` and the device's own properties.
    pub fn device_add(&mut self, device: Value) -> Result<()> {
        self.execute("device_add", device).map(drop)
    }

    /// Ends QEMU, which writes its disks out first.
    pub fn quit(&mut self) -> Result<()> {
        self.execute("quit", Value::Null).map(drop)
    }

    /// The next message. An event is kept as well as returned.
    fn message(&mut self, deadline: Instant) -> Result<Value> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                if line.trim_ascii().is_empty() {
                    continue;
                }
                let message: Value = serde_json::from_slice(&line).context("QEMU's monitor sent no JSON")?;
                if message.get("event").is_some() {
                    if self.events.len() == EVENTS_MAX {
                        self.events.pop_front();
                    }
                    self.events.push_back(message.clone());
                }
                return Ok(message);
            }
            self.receive(deadline)?;
        }
    }

    fn receive(&mut self, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("{} s have passed", self.patience.as_secs());
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut chunk = [0; 4096];
        match self.stream.read(&mut chunk) {
            Ok(0) => bail!("QEMU has closed its monitor"),
            Ok(count) => self.received.extend_from_slice(&chunk[..count]),
            // The deadline is looked at when this is called again.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error).context("QEMU's monitor cannot be read"),
        }
        Ok(())
    }
}

/// Events that nobody waits for are forgotten, the oldest first.
const EVENTS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::thread::{self, JoinHandle};

    use super::*;

    /// A monitor that greets, and answers each line with the next of these.
    fn monitor(answers: &'static [&'static str]) -> (UnixStream, JoinHandle<Vec<Value>>) {
        let (client, mut server) = UnixStream::pair().unwrap();
        let thread = thread::spawn(move || {
            server.write_all(b"{\"QMP\": {\"version\": {}}}\r\n").unwrap();
            let mut requests = Vec::new();
            let reader = BufReader::new(server.try_clone().unwrap());
            for (answer, line) in ["{\"return\": {}}"].iter().chain(answers).zip(reader.lines()) {
                requests.push(serde_json::from_str(&line.unwrap()).unwrap());
                // In two pieces, as a socket may deliver it.
                let (first, second) = answer.split_at(answer.len() / 2);
                server.write_all(first.as_bytes()).unwrap();
                server.write_all(format!("{second}\r\n").as_bytes()).unwrap();
            }
            requests
        });
        (client, thread)
    }

    const PATIENCE: Duration = Duration::from_secs(5);

    #[test]
    fn commands_are_sent_with_their_arguments_and_events_between_do_not_disturb() {
        let (client, monitor) = monitor(&[
            "{\"event\": \"DEVICE_DELETED\", \"data\": {\"path\": \"/x\"}}\r\n{\"return\": {}}\r\n\
             {\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"d1\"}}",
            "{\"return\": [1]}",
        ]);
        let mut qmp = Qmp::over(client, PATIENCE).unwrap();
        qmp.device_del("d1").unwrap();
        assert_eq!(qmp.query_blockstats().unwrap(), json!([1]));
        drop(qmp);
        let requests = monitor.join().unwrap();
        assert_eq!(requests[0], json!({"execute": "qmp_capabilities"}));
        assert_eq!(requests[1], json!({"execute": "device_del", "arguments": {"id": "d1"}}));
        assert_eq!(requests[2], json!({"execute": "query-blockstats"}));
    }

    #[test]
    fn a_refusal_says_what_qemu_said() {
        let (client, monitor) =
            monitor(&["{\"error\": {\"class\": \"DeviceNotFound\", \"desc\": \"no d1\"}}"]);
        let mut qmp = Qmp::over(client, PATIENCE).unwrap();
        assert_eq!(qmp.device_del("d1").unwrap_err().to_string(), "QEMU refused device_del: no d1");
        drop(qmp);
        monitor.join().unwrap();
    }

    #[test]
    fn an_answer_that_never_comes_and_a_closed_monitor_are_errors() {
        let (client, silent) = UnixStream::pair().unwrap();
        let error = format!("{:#}", Qmp::over(client, Duration::from_millis(20)).unwrap_err());
        assert!(error.starts_with("QEMU's monitor did not greet"), "{error}");
        drop(silent);

        let (client, monitor) = monitor(&[]);
        let mut qmp = Qmp::over(client, PATIENCE).unwrap();
        monitor.join().unwrap();
        assert!(qmp.quit().is_err());
    }
}
