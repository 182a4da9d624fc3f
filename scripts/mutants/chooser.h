#pragma once

/// Whether this process is to be the mutant `number`: VLMTRAIN_MUTANT says which. With VLMTRAIN_MUTANT_RECORD the
/// number is also appended to the file of that name when it is asked for first.
bool vlmtrain_mutant(int number);
