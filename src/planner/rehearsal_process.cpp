#include "vlmtrain/planner/rehearsal_process.h"

#include <csignal>
#include <cstdio>

#include "planner/child_process.h"
#include "planner/protocol.h"
#include "planner/twin_rehearsal.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::planner {

RehearsalProcess::RehearsalProcess(const Job& job, const VirtualCard& card) {
  child_ = std::make_unique<ChildProcess>(card);
  set_job(job);
}

RehearsalProcess::~RehearsalProcess() = default;

void RehearsalProcess::set_job(const Job& job) {
  child_->send({{"job", job}});
}

Outcome RehearsalProcess::rehearse(const RehearsalRequest& request) {
  child_->send({{"request", request}});
  return child_->receive().get<Outcome>();
}

void serve_rehearsals() {
  // They are for the run that this process belongs to, which ends it in time.
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, SIG_IGN);
  const at::Device device = memory::open_device("cuda");
  Job job;
  std::optional<TwinRehearsal> twin;
  while (const auto line = read_line(stdin)) {
    const auto message = nlohmann::json::parse(*line);
    if (message.contains("job")) {
      job = message["job"].get<Job>();
      continue;
    }
    try {
      if (message.contains("twin")) {
        twin.emplace(job, message["twin"].get<Choices>(), device);
        continue;
      }
      if (message.contains("twin_step")) {
        if (!twin) break;  // why there is none was the answer to the line before
        write_line(stdout, twin->rehearse(message["twin_step"].get<TwinStep>()));
        continue;
      }
      write_line(stdout, rehearse(job, message.at("request").get<RehearsalRequest>(), device));
    } catch (const UserError& error) {
      write_line(stdout, {{"error", {{"code", static_cast<int>(error.code())}, {"message", error.what()}}}});
    }
  }
}

}  // namespace vlmtrain::planner
