#pragma once

#include <map>
#include <string>
#include <vector>

#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

/// Copies the columns of a record to their names in kRenamableColumns. `columns` has the data set's
/// names by these names (RecordSettings::columns). Overwrites other values under these names, and
/// erases keys that a mapped column replaces, such as "conversations" for a mapped question. Throws
/// data_error if the record has none of the mapped columns.
void rename_columns(RecordJson& record, const std::map<std::string, std::string>& columns);

/// Adds "messages" to a record without turns, from "texts", "question" and "answer", "instruction"
/// and "output", or "caption", in this order of priority. The converted values become null. Other
/// records are unchanged. Throws data_error if the fields are incomplete or invalid.
void add_messages(RecordJson& record);

/// Returns true if records with these fields may have turns, directly or after rename_columns().
bool may_have_turns(const std::vector<std::string>& fields, const std::map<std::string, std::string>& columns);

}  // namespace vlmtrain::io
