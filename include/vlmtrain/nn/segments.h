#pragma once

#include "vlmtrain/nn/attention/attention.h"
