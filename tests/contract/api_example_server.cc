// lossgauged's two servers over hand-made state, for tests in other languages. Prints "GRPC_ADDRESS HTTP_ADDRESS", serves until its input ends.
#include <cstdio>
#include <thread>

#include "server/rpc/grpc_server.h"
#include "server/web/web_server.h"
#include "tests/server/api/fake_state.h"

int main() {
  using namespace lossgauge;
  state::SnapshotBoard board;
  state::Mailbox mailbox;
  testing::FakeClock clock;
  testing::FakeDrain drain(mailbox);
  const api::Api api(board, mailbox, std::make_shared<testing::FakeHistory>(), clock);
  board.Publish(testing::MakeSnapshot(1, {testing::MakeRun("demo", 1, 4)}));

  rpc::GrpcOptions grpc_options;
  grpc_options.listen = "127.0.0.1:0";
  rpc::GrpcServer grpc(grpc_options, api);
  web::WebOptions web_options;
  web_options.listen = "127.0.0.1:0";
  web::WebServer web(web_options, api);
  for (const absl::Status& status : {grpc.Start(), web.Start()}) {
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  std::printf("%s %s\n", grpc.address().c_str(), web.address().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
