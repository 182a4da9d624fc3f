#pragma once

#include <nlohmann/json.hpp>

#include "vlmtrain/planner/rehearsal.h"
#include "vlmtrain/planner/twin.h"

// The lines between a planner and its rehearsal process: {"job": …} says what is rehearsed from then on, {"request": …}
// is answered by one line: an outcome, or {"error": {"code": exit code, "message": text}}. {"twin": choices} starts a
// run of that job, and each {"twin_step": …} is answered by a foresight. Both ends are the same program, so there are
// no versions and no defaults.

namespace vlmtrain::planner {

void to_json(nlohmann::json& json, const Job& job);
void from_json(const nlohmann::json& json, Job& job);
void to_json(nlohmann::json& json, const RehearsalRequest& request);
void from_json(const nlohmann::json& json, RehearsalRequest& request);
void to_json(nlohmann::json& json, const Outcome& outcome);
void from_json(const nlohmann::json& json, Outcome& outcome);
void to_json(nlohmann::json& json, const Choices& choices);
void from_json(const nlohmann::json& json, Choices& choices);
void to_json(nlohmann::json& json, const TwinStep& step);
void from_json(const nlohmann::json& json, TwinStep& step);
void to_json(nlohmann::json& json, const Foresight& foresight);
void from_json(const nlohmann::json& json, Foresight& foresight);

}  // namespace vlmtrain::planner
