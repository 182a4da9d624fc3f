#include "fuzz/input.h"
#include "planner/dry_run/protocol.h"
#include "vlmtrain/io/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto message = vlmtrain::io::try_parse_json(vlmtrain::fuzz::to_text(data, size));
  if (!message || !message->is_object()) return 0;
  // The peer is this program. A malformed message gives an exception of the JSON library or a
  // UserError, never a crash.
  const auto check_round_trip = [&]<class T>(const char* key, T) {
    if (!message->contains(key)) return;
    try {
      vlmtrain::fuzz::expect_accepted_or_rejected([&] { nlohmann::json(message->at(key).get<T>()); });
    } catch (const nlohmann::json::exception&) {
    }
  };
  check_round_trip("job", vlmtrain::planner::Job{});
  check_round_trip("request", vlmtrain::planner::DryRunRequest{});
  check_round_trip("look_ahead_step", vlmtrain::planner::LookAheadStep{});
  return 0;
}
