//! rathole's own main, without its log. It exits with the process that started it.

use clap::Parser;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (_end, ended) = tokio::sync::broadcast::channel::<bool>(1);
    rathole::run(rathole::Cli::parse(), ended).await
}
