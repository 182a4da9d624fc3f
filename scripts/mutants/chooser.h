#pragma once

/// Returns whether this process is the mutant `number`, which VLMTRAIN_MUTANT selects. At the first call for a number,
/// also appends it to the file VLMTRAIN_MUTANT_RECORD, if set.
bool vlmtrain_mutant(int number);
