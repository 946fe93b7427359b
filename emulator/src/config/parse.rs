//! The text form of a configuration: `key=value,key=value`, or `@file.toml`.

use std::collections::BTreeSet;
use std::path::Path;
use std::str::FromStr;

use doorbell_spec::Nsid;

use super::file;
use super::keys::{CONTROLLER_KEYS, Draft, Key, NAMESPACE_KEYS};
use super::{BackendConfig, ConfigError, EmulatorConfig, NamespaceConfig};

impl FromStr for EmulatorConfig {
    type Err = ConfigError;

    /// Reads what follows `emu:`. The empty text is the default.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut config = if let Some(path) = text.strip_prefix('@') {
            if path.is_empty() {
                let what =
                    "@ needs the name of a TOML file behind it (for example: emu:@file.toml)".to_owned();
                return Err(ConfigError::Conflict { what });
            }
            file::read(Path::new(path))?
        } else {
            let mut draft = Draft::new();
            let mut seen = BTreeSet::new();
            for pair in text.split(',').filter(|pair| !pair.is_empty()) {
                let Some((key, value)) = pair.split_once('=') else {
                    return Err(ConfigError::NotAPair { text: pair.to_owned(), example: EXAMPLE });
                };
                let key = key.trim();
                draft.apply(&[NAMESPACE_KEYS, CONTROLLER_KEYS], key, value.trim())?;
                if !seen.insert(key) {
                    let what = format!("{key} is given twice; leave one of them out");
                    return Err(ConfigError::Conflict { what });
                }
            }
            draft.finish()?
        };
        text.clone_into(&mut config.source);
        config.validate()?;
        Ok(config)
    }
}

impl Draft {
    /// The defaults, and one namespace to be described.
    pub(super) fn new() -> Self {
        Self {
            config: EmulatorConfig::default(),
            namespace: NamespaceConfig::default(),
            nsids: vec![Nsid(1)],
            path: None,
        }
    }

    /// Sets one option from the rows of `tables`.
    pub(super) fn apply(&mut self, tables: &[&[Key]], key: &str, value: &str) -> Result<(), ConfigError> {
        let row = tables.iter().flat_map(|table| table.iter()).find(|row| row.name == key);
        let Some(row) = row else {
            let names: Vec<&str> = tables.iter().flat_map(|table| table.iter()).map(|row| row.name).collect();
            let allowed = names.join(", ");
            return Err(ConfigError::UnknownKey { key: key.to_owned(), allowed, example: EXAMPLE });
        };
        (row.apply)(self, value).ok_or_else(|| ConfigError::BadValue {
            key: key.to_owned(),
            value: value.to_owned(),
            allowed: row.allowed,
            example: row.example,
        })
    }

    /// The namespaces that the namespace keys describe, one for each identifier.
    pub(super) fn described_namespaces(&mut self) -> Result<Vec<NamespaceConfig>, ConfigError> {
        let is_file = matches!(self.namespace.backend, BackendConfig::File(_));
        match self.path.take() {
            Some(path) if is_file && self.nsids.len() == 1 => {
                self.namespace.backend = BackendConfig::File(path);
            }
            None if !is_file => {}
            Some(_) if is_file => {
                let what = "one file cannot hold several namespaces; describe each in a file.toml".to_owned();
                return Err(ConfigError::Conflict { what });
            }
            Some(_) => {
                let what = "path needs backend=file (for example: backend=file,path=disk.img)".to_owned();
                return Err(ConfigError::Conflict { what });
            }
            None => {
                let what = "backend=file needs a path (for example: backend=file,path=disk.img,size=1G)";
                return Err(ConfigError::Conflict { what: what.to_owned() });
            }
        }
        Ok(self.nsids.iter().map(|nsid| NamespaceConfig { nsid: *nsid, ..self.namespace.clone() }).collect())
    }

    fn finish(mut self) -> Result<EmulatorConfig, ConfigError> {
        self.config.namespaces = self.described_namespaces()?;
        Ok(self.config)
    }
}

const EXAMPLE: &str = "backend=mem,size=1G,lba=4096,latency=80us";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Progress, Toggle};
    use super::*;

    fn parse(text: &str) -> EmulatorConfig {
        text.parse().expect("a configuration")
    }

    fn refuse(text: &str) -> String {
        text.parse::<EmulatorConfig>().expect_err("refused").to_string()
    }

    #[test]
    fn the_empty_text_is_the_default() {
        let config = parse("");
        assert_eq!(config.namespaces.len(), 1);
        assert_eq!(config.namespaces[0].backend, BackendConfig::Memory);
        assert_eq!(config.mqes_z, 1023);
        assert!(!config.has_write_cache());
    }

    #[test]
    fn every_key_takes_its_own_example() {
        for row in NAMESPACE_KEYS.iter().chain(CONTROLLER_KEYS) {
            let mut draft = Draft::new();
            assert!((row.apply)(&mut draft, row.example).is_some(), "{}={}", row.name, row.example);
            assert!((row.apply)(&mut Draft::new(), "\u{1}").is_none() || row.name == "path", "{}", row.name);
        }
    }

    #[test]
    fn values_land_where_they_belong() {
        let config =
            parse("backend=null,size=2G,lba=4096,latency=80us,units=8,mqes=2,mdts=128k,stride=15,queues=4");
        assert_eq!(config.namespaces[0].bytes, Some(2 << 30));
        assert_eq!((config.latency.read, config.latency.units), (Duration::from_micros(80), 8));
        assert_eq!((config.mqes_z, config.mdts, config.stride), (1, 5, 15));
        assert_eq!(parse("mqes_z=0").mqes_z, 0);
        assert_eq!(parse("mqes_z=0xffff").mqes_z, 0xffff);
        assert_eq!(parse("mpsmin=16k,mpsmax=64k").page_min, 2);
        assert_eq!(parse("never_ready=on").ready, Progress::Never);
        assert_eq!(parse("to=750ms").timeout_500ms, 2);
        assert_eq!(parse("vwc=on").write_cache, Some(Toggle::On));
        let nsids: Vec<u32> = parse("nsid=1+3+7-9").namespaces.iter().map(|ns| ns.nsid.0).collect();
        assert_eq!(nsids, [1, 3, 7, 8, 9]);
    }

    #[test]
    fn errors_name_the_key_the_values_and_an_example() {
        let unknown = refuse("colour=red");
        assert!(unknown.contains("\"colour\"") && unknown.contains("backend, path"), "{unknown}");
        let bad = refuse("lba=1000");
        assert!(
            bad.contains("lba=1000") && bad.contains("512 to 65536") && bad.contains("lba=4096"),
            "{bad}"
        );
        assert!(refuse("latency").contains("key=value"));
        assert!(refuse("backend=file").contains("path"));
        assert!(refuse("path=x").contains("backend=file"));
        assert!(refuse("metadata=8").contains("not have yet"));
        assert!(refuse("mpsmin=64k,mpsmax=4k").contains("mpsmax"));
        assert!(refuse("nsid=1+1").contains("same nsid"));
        assert!(refuse("stride=15,queues=65535").contains("fewer queues"));
        assert!(refuse("@/nonexistent/file.toml").contains("could not be read"));
        assert!(refuse("@").contains("needs the name"));
        assert!(refuse("size=1M,lba=512,size=2M").contains("size is given twice"));
        for size in ["size=0", "size=99999999999G"] {
            assert!(refuse(size).contains("from 1 byte to below 16 EiB"));
        }
    }
}
