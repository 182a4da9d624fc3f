#pragma once

#include <nlohmann/json.hpp>

#include "vlmtrain/planner/rehearsal.h"

// The lines between a planner and its rehearsal process: {"job": …} says what is rehearsed from then on, {"request": …}
// is answered by one line: an outcome, or {"error": {"code": exit code, "message": text}}. Both ends are the same
// program, so there are no versions and no defaults.

namespace vlmtrain::planner {

void to_json(nlohmann::json& json, const Job& job);
void from_json(const nlohmann::json& json, Job& job);
void to_json(nlohmann::json& json, const RehearsalRequest& request);
void from_json(const nlohmann::json& json, RehearsalRequest& request);
void to_json(nlohmann::json& json, const Outcome& outcome);
void from_json(const nlohmann::json& json, Outcome& outcome);

}  // namespace vlmtrain::planner
