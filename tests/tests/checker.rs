//! The checker of images against the tool that writes them, and against images that are wrong.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use doorbell_tests::{program, workspace};

const BYTES: u64 = 8 << 20;
const SEED: &str = "424242";

/// An image that `nvme-perf verify` has written in process.
fn image(folder: &Path, block: u32) -> std::path::PathBuf {
    let file = folder.join(format!("image-{block}"));
    let target = format!("emu:backend=file,path={},size={BYTES},lba={block}", file.display());
    let verify = Command::new(program("nvme-perf", "nvme-perf"))
        .args(["verify", &target, "--seed", SEED, "--generations", "2"])
        .output()
        .expect("nvme-perf runs");
    assert!(verify.status.success(), "{}", String::from_utf8_lossy(&verify.stderr));
    file
}

/// The checker's exit status and what it said.
fn check(image: &Path, options: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(workspace().join("tests/check_image.py")).arg(image).args(options).output();
    let output = output.expect("Python 3 is missing; install it with `sudo apt-get install python3`");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), said)
}

#[test]
fn what_verify_wrote_is_right_block_by_block() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for block in [512, 4096] {
        let image = image(folder.path(), block);
        let (status, said) = check(&image, &["--block", &block.to_string(), "--seed", SEED]);
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains(&format!("{} blocks of {block} bytes", BYTES / u64::from(block))), "{said}");
        assert!(said.contains("generations [1, 2]"), "{said}");
    }
}

#[test]
fn any_single_wrong_bit_is_found_and_its_block_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = image(folder.path(), 512);
    let file = OpenOptions::new().read(true).write(true).open(&image).expect("the image");
    for (block, offset) in
        [(0, 0), (1, 8), (77, 16), (78, 24), (1000, 35), (1001, 39), (9000, 40), (16_383, 511)]
    {
        let at = block * 512 + offset;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("within the image");
        file.write_all_at(&[byte[0] ^ 4], at).expect("within the image");
        let (first, count) = (block.saturating_sub(3).to_string(), (block.min(3) + 1).to_string());
        let options = ["--block", "512", "--seed", SEED, "--offset", &first, "--blocks", &count];
        let (status, said) = check(&image, &options);
        assert_eq!(status, Some(1), "byte {offset} of block {block}: {said}");
        assert!(said.contains(&format!("block {block} ")), "{said}");
        file.write_all_at(&byte, at).expect("within the image");
        assert_eq!(check(&image, &options).0, Some(0));
    }
}

#[test]
fn what_verify_did_not_write_is_wrong() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = image(folder.path(), 4096);
    assert_eq!(check(&image, &["--block", "4096", "--seed", "7", "--blocks", "1"]).0, Some(1));
    assert_eq!(check(&image, &["--block", "512", "--blocks", "9"]).0, Some(1));
    assert_eq!(check(&image, &["--block", "4096", "--offset", "2048"]).0, Some(1), "nothing was checked");
    assert_eq!(check(&image, &["--block", "100"]).0, Some(2));
    let zeros = folder.path().join("zeros");
    std::fs::write(&zeros, [0; 4096]).expect("written");
    let (status, said) = check(&zeros, &["--block", "4096"]);
    assert!(status == Some(1) && said.contains("all zeros"), "{said}");
    std::fs::write(&zeros, [0; 100]).expect("written");
    let (status, said) = check(&zeros, &["--block", "4096"]);
    assert!(status == Some(1) && said.contains("cut short"), "{said}");
}
