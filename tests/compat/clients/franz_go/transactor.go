package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	endValue        = "end"
	transactorBatch = 20
)

var isolations = map[string]kgo.IsolationLevel{
	"committed":   kgo.ReadCommitted(),
	"uncommitted": kgo.ReadUncommitted(),
}

// transactor is franz-go with transactions. What it takes and answers: clients/python/transactor_loop.py.
type transactor struct {
	seeds  []string
	client *kgo.Client
}

func (t *transactor) open(id string, timeoutMs string) error {
	timeout, err := strconv.Atoi(timeoutMs)
	if err != nil {
		return err
	}
	t.client, err = kgo.NewClient(
		kgo.SeedBrokers(t.seeds...),
		kgo.TransactionalID(id),
		kgo.TransactionTimeout(time.Duration(timeout)*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return err
	}
	_, _, err = t.client.ProducerID(context.Background()) // Else it would wait for the first record.
	return err
}

func (t *transactor) send(topic, partition, value string) error {
	number, err := strconv.Atoi(partition)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), produceMax)
	defer cancel()
	record := &kgo.Record{Topic: topic, Partition: int32(number), Value: []byte(value)}
	return t.client.ProduceSync(ctx, record).FirstErr()
}

func (t *transactor) end(commit kgo.TransactionEndTry) error {
	ctx, cancel := context.WithTimeout(context.Background(), produceMax)
	defer cancel()
	if err := t.client.Flush(ctx); err != nil {
		return err
	}
	return t.client.EndTransaction(ctx, commit)
}

func (t *transactor) read(isolation, topic, partition string) (string, error) {
	number, err := strconv.Atoi(partition)
	if err != nil {
		return "", err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(t.seeds...),
		kgo.FetchIsolationLevel(isolations[isolation]),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {int32(number): kgo.NewOffset().At(0)}}),
	)
	if err != nil {
		return "", err
	}
	defer client.Close()
	var values []string
	for {
		fetches, err := pollSome(client.PollFetches)
		if err != nil {
			return "", err
		}
		for _, record := range fetches.Records() {
			if string(record.Value) == endValue {
				return strings.Join(values, ","), nil
			}
			values = append(values, string(record.Value))
		}
	}
}

func (t *transactor) copy(id, source, target, group string) (string, error) {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(t.seeds...),
		kgo.TransactionalID(id),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return "", err
	}
	defer session.Close()
	for count := 1; ; count++ {
		fetches, err := pollSome(func(ctx context.Context) kgo.Fetches {
			return session.PollRecords(ctx, transactorBatch)
		})
		if err != nil {
			return "", err
		}
		if err := session.Begin(); err != nil {
			return "", err
		}
		isDone, failed := false, kgo.AbortingFirstErrPromise(session.Client())
		for _, record := range fetches.Records() {
			if isDone = string(record.Value) == endValue; isDone {
				break
			}
			session.Produce(context.Background(), &kgo.Record{Topic: target, Value: record.Value}, failed.Promise())
		}
		// What was not sent yet when a transaction is aborted never is.
		if err := session.Client().Flush(context.Background()); err != nil {
			return "", err
		}
		committed, err := session.End(context.Background(), kgo.TransactionEndTry(count != 2 && failed.Err() == nil))
		if err != nil {
			return "", err
		}
		if committed && isDone {
			return strconv.Itoa(count), nil
		}
	}
}

func pollSome(poll func(context.Context) kgo.Fetches) (kgo.Fetches, error) {
	deadline := time.Now().Add(produceMax)
	for time.Now().Before(deadline) {
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		fetches := poll(ctx)
		cancel()
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		if !fetches.Empty() {
			return fetches, nil
		}
	}
	return nil, errors.New("nothing more to read")
}

func (t *transactor) answer(words []string) (string, error) {
	switch words[0] {
	case "open":
		return "", t.open(words[1], words[2])
	case "begin":
		return "", t.client.BeginTransaction()
	case "send":
		return "", t.send(words[1], words[2], words[3])
	case "commit":
		return "", t.end(kgo.TryCommit)
	case "abort":
		return "", t.end(kgo.TryAbort)
	case "read":
		return t.read(words[1], words[2], words[3])
	case "copy":
		return t.copy(words[1], words[2], words[3], words[4])
	}
	return "", fmt.Errorf("no such verb: %s", words[0])
}

func runTransactor(bootstrap string) {
	t := &transactor{seeds: strings.Split(bootstrap, ",")}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		answer, err := t.answer(strings.Split(lines.Text(), "\t"))
		if err != nil {
			fmt.Println("FAILED", strings.Join(strings.Fields(err.Error()), " "))
		} else {
			fmt.Println(strings.TrimSpace("ok " + answer))
		}
	}
}
