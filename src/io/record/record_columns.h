#pragma once

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

namespace vlmtrain::io {

/// Renames the columns of a record to kRenamableColumns according to `columns`. Erases other values
/// of these names, and turns that a mapped question or answer replaces. Throws data_error if the
/// record has none of the mapped columns.
void rename_columns(nlohmann::json& record, const std::map<std::string, std::string>& columns);

/// Adds "messages" to a record without turns, from "texts", "question" and "answer", "instruction"
/// and "output", or "caption". Other records are unchanged.
void make_messages(nlohmann::json& record);

/// Returns true if records with these fields may have turns, directly or through `columns`.
bool can_make_turns(const std::vector<std::string>& fields, const std::map<std::string, std::string>& columns);

}  // namespace vlmtrain::io
