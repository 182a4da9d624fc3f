#pragma once

#include "vlmtrain/io/record.h"
