package main

import "testing"

func TestSelectRows(t *testing.T) {
	all, generator, err := selectRows("")
	if err != nil || len(all) != len(workloads) || !generator {
		t.Errorf("everything: %d rows, generator %v, %v", len(all), generator, err)
	}
	some, generator, err := selectRows("batch100, 1")
	if err != nil || generator || len(some) != 2 || some[0].key != "1" || some[1].key != "batch100" {
		t.Errorf("two rows: %v, generator %v, %v", some, generator, err)
	}
	none, generator, err := selectRows("generator")
	if err != nil || !generator || len(none) != 0 {
		t.Errorf("the generator alone: %v, %v, %v", none, generator, err)
	}
	if _, _, err := selectRows("1,2"); err == nil {
		t.Error("a row that does not exist was taken")
	}
}
