//! Reads the first block of a device: `cargo run -p doorbell --example hello -- emu:`, or `-- 0000:01:00.0`.

use std::process::ExitCode;

use doorbell::{Controller, Lba, QueueConfig, Request};

fn main() -> ExitCode {
    match first_block() {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("hello: {error}");
            ExitCode::FAILURE
        }
    }
}

fn first_block() -> Result<String, Box<dyn std::error::Error>> {
    let target = std::env::args().nth(1).unwrap_or_else(|| "emu:".to_owned());
    let controller = Controller::open(&target)?;
    let namespace = *controller.namespaces().first().ok_or("the controller has no namespace")?;
    let mut queue = controller.create_queue(QueueConfig::default())?;
    let buffer = controller.space().allocate(namespace.block_bytes() as usize)?;
    queue.submit(Request::read(&namespace, Lba(0), buffer)).map_err(|refused| refused.error)?;
    let mut first_bytes = None;
    while queue.outstanding() > 0 {
        queue.poll(1, |_, completion| {
            let block = completion.buffer.into_dma_buf();
            first_bytes = Some(completion.result.map(|_| block.map(|block| block[..16].to_vec())));
        });
    }
    let first_bytes = first_bytes.ok_or("no completion")??.ok_or("the buffer did not come back")?;
    Ok(format!(
        "{} ({}) begins with {first_bytes:02x?}",
        controller.identity().name,
        controller.names().model
    ))
}
